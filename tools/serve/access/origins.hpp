#pragma once
// Pages of which other origins may read answers (CORS). A browser asks before it sends what a form
// could not send, and shows a page no answer that does not name the page's origin. That protects
// users of browsers, not the service: other programs send whatever origin they like.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/expected.hpp"
#include "tools/serve/http/exchange.hpp"

namespace kvhive {

class Origins {
 public:
  /// None: only the service's own page.
  Origins() = default;

  /// \param given  each "scheme://host" or "scheme://host:port", as browsers send them; or "*" =
  /// all
  [[nodiscard]] static Expected<Origins> parse(const std::vector<std::string>& given);

  /// What every answer to the request says, also one that is an error.
  HttpHeaders headers_for(const HttpRequest& request) const;
  /// The answer to a browser that asks whether it may send a request; nothing if that is no such
  /// question, or no origin is allowed at all. It needs no API key: the browser has none.
  std::optional<HttpAnswer> answer_to_question(const HttpRequest& request) const;

 private:
  bool allows(std::string_view origin) const;

  bool all_ = false;
  std::vector<std::string> allowed_;
};

}  // namespace kvhive
