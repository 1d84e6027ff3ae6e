#include "tools/serve/access/hosts.hpp"

#include <arpa/inet.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "tools/serve/openai/error.hpp"

namespace kvhive {
namespace {

std::string in_lower_case(std::string_view text) {
  std::string lower(text);
  for (char& letter : lower)
    letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  return lower;
}

bool is_name(std::string_view text) {
  return !text.empty() && text.size() <= 253 &&
         std::all_of(text.begin(), text.end(), [](unsigned char letter) {
           return std::isalnum(letter) != 0 || letter == '-' || letter == '_' || letter == '.';
         });
}

bool is_address(int family, const std::string& text) {
  std::array<unsigned char, sizeof(in6_addr)> address{};
  return inet_pton(family, text.c_str(), address.data()) == 1;
}

/// "name:8000" -> "name", "[::1]:8000" -> "[::1]"; a dot at the end of a name says nothing more.
std::string without_port(std::string_view host) {
  const std::size_t colon = host.rfind(':');
  const std::size_t bracket = host.rfind(']');
  if (colon != std::string_view::npos && (bracket == std::string_view::npos || colon > bracket) &&
      std::all_of(host.begin() + static_cast<std::ptrdiff_t>(colon) + 1, host.end(),
                  [](unsigned char letter) { return std::isdigit(letter) != 0; }))
    host = host.substr(0, colon);
  if (host.size() > 1 && host.ends_with('.')) host.remove_suffix(1);
  return in_lower_case(host);
}

}  // namespace

Hosts::Hosts() : names_{"localhost"} {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0 || !is_name(name.data())) return;
  const std::string whole = in_lower_case(name.data());
  names_.push_back(whole);
  names_.push_back(whole.substr(0, whole.find('.')));
}

Expected<Hosts> Hosts::parse(const std::vector<std::string>& given) {
  Hosts hosts;
  for (const std::string& one : given) {
    const bool is_suffix = one.starts_with("*.");
    if (one == "*") {
      hosts.all_ = true;
    } else if (!is_name(is_suffix ? std::string_view(one).substr(2) : std::string_view(one))) {
      return failure(Errc::bad_argument,
                     "--allowed-hosts '" + one +
                         "' is no host's name; give one as kv.example, without scheme and port, "
                         "*.example for all below it, or * for any; addresses are allowed anyway");
    } else if (is_suffix) {
      hosts.suffixes_.push_back(in_lower_case(one.substr(1)));
    } else {
      hosts.names_.push_back(in_lower_case(one));
    }
  }
  return hosts;
}

bool Hosts::allows(std::string_view host) const {
  const std::string name = without_port(host);
  if (std::find(names_.begin(), names_.end(), name) != names_.end()) return true;
  if (is_address(AF_INET, name)) return true;
  if (name.starts_with('[') && name.ends_with(']') &&
      is_address(AF_INET6, name.substr(1, name.size() - 2)))
    return true;
  return std::any_of(suffixes_.begin(), suffixes_.end(), [&](const std::string& suffix) {
    return name.size() > suffix.size() && name.ends_with(suffix);
  });
}

std::optional<HttpAnswer> Hosts::refusal_of(const HttpRequest& request) const {
  if (all_) return std::nullopt;
  for (const auto& [name, value] : request.headers) {
    if (in_lower_case(name) != "host" || allows(value)) continue;
    return to_answer({403,
                      "Host: '" + shown_text(value) +
                          "' is none of this service's names; call it by its address or as "
                          "localhost, or have the operator add the name with --allowed-hosts",
                      "Host"});
  }
  return std::nullopt;
}

}  // namespace kvhive
