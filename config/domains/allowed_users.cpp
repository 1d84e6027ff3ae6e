#include "config/domains/allowed_users.hpp"

namespace kvhive {

Expected<AllowedUsers> parse_allowed_users(const std::string& text) {
  if (text == "owner") return AllowedUsers{AllowedUsers::Kind::owner, ""};
  if (text == "everybody") return AllowedUsers{AllowedUsers::Kind::everybody, ""};
  if (text.size() > 1 && text[0] == '@')
    return AllowedUsers{AllowedUsers::Kind::group, text.substr(1)};
  return failure(Errc::bad_argument,
                 "'" + text + "' is unknown; use one of owner, everybody, @GROUP");
}

std::string to_string(const AllowedUsers& users) {
  switch (users.kind) {
    case AllowedUsers::Kind::owner: return "owner";
    case AllowedUsers::Kind::everybody: return "everybody";
    case AllowedUsers::Kind::group: break;
  }
  return "@" + users.group;
}

}  // namespace kvhive
