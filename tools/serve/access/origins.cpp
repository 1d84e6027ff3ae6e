#include "tools/serve/access/origins.hpp"

#include <algorithm>
#include <cctype>

#include "tools/serve/openai/error.hpp"

namespace kvhive {
namespace {

constexpr std::string_view kSchemeEnd = "://";

/// As browsers write it: in lower case, and without a port that the scheme has anyway.
std::string canonical(std::string origin) {
  for (char& letter : origin)
    letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  for (const auto& [scheme, port] : {std::pair("http://", ":80"), std::pair("https://", ":443")})
    if (origin.starts_with(scheme) && origin.ends_with(port))
      origin.resize(origin.size() - std::string_view(port).size());
  return origin;
}

bool is_origin(std::string_view text) {
  const std::size_t end = text.find(kSchemeEnd);
  if (end == 0 || end == std::string_view::npos) return false;
  const std::string_view host = text.substr(end + kSchemeEnd.size());
  const auto is_of_host = [](unsigned char letter) {
    return std::isalnum(letter) != 0 ||
           std::string_view(".-_:[]").find(char(letter)) != std::string_view::npos;
  };
  const auto is_of_scheme = [](unsigned char letter) {
    return std::isalnum(letter) != 0 ||
           std::string_view("+.-").find(char(letter)) != std::string_view::npos;
  };
  const std::string_view scheme = text.substr(0, end);
  return !host.empty() && std::all_of(host.begin(), host.end(), is_of_host) &&
         std::all_of(scheme.begin(), scheme.end(), is_of_scheme);
}

/// A list of header names, and not longer than any honest one.
bool is_list_of_names(std::string_view text) {
  return text.size() <= 1024 && std::all_of(text.begin(), text.end(), [](unsigned char letter) {
           return std::isalnum(letter) != 0 || letter == '-' || letter == '_' || letter == ',' ||
                  letter == ' ';
         });
}

}  // namespace

Expected<Origins> Origins::parse(const std::vector<std::string>& given) {
  Origins origins;
  for (const std::string& one : given) {
    if (one == "*") {
      origins.all_ = true;
      continue;
    }
    if (!is_origin(one))
      return failure(
          Errc::bad_argument,
          "--allowed-origins '" + one +
              "' is no origin; give one as https://chat.example or http://127.0.0.1:3000, "
              "without a path, or * for all");
    origins.allowed_.push_back(canonical(one));
  }
  return origins;
}

bool Origins::allows(std::string_view origin) const {
  return all_ || std::find(allowed_.begin(), allowed_.end(), origin) != allowed_.end();
}

HttpHeaders Origins::headers_for(const HttpRequest& request) const {
  if (!all_ && allowed_.empty()) return {};
  HttpHeaders headers;
  if (!all_) headers.emplace_back("Vary", "Origin");  // for caches: answers differ by it
  const std::string_view origin = request.header("Origin");
  if (origin.empty() || !allows(origin)) return headers;
  headers.emplace_back("Access-Control-Allow-Origin", all_ ? "*" : std::string(origin));
  headers.emplace_back("Access-Control-Expose-Headers", "Retry-After, retry-after-ms");
  return headers;
}

std::optional<HttpAnswer> Origins::answer_to_question(const HttpRequest& request) const {
  const std::string_view origin = request.header("Origin");
  const bool is_question = request.method == "OPTIONS" && !origin.empty() &&
                           !request.header("Access-Control-Request-Method").empty();
  if (!is_question || (!all_ && allowed_.empty())) return std::nullopt;
  if (!allows(origin))
    return to_answer({403,
                      "Origin: this service does not answer pages of '" + shown_text(origin) +
                          "'; the operator allows some with --allowed-origins",
                      "Origin"});
  HttpAnswer answer{200, "", "", {}};
  answer.headers.emplace_back("Access-Control-Allow-Methods", "GET, POST");
  // Whatever the page wants to send: libraries have headers of their own, and no cookie is read.
  if (const std::string_view wanted = request.header("Access-Control-Request-Headers");
      !wanted.empty() && is_list_of_names(wanted))
    answer.headers.emplace_back("Access-Control-Allow-Headers", std::string(wanted));
  answer.headers.emplace_back("Access-Control-Max-Age", "600");
  return answer;
}

}  // namespace kvhive
