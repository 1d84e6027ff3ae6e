#pragma once
// By which names this service may be called: what the header Host of a request says. A page whose
// own name suddenly leads to this machine (DNS rebinding) is of one origin with the service, so
// that its browser shows it all answers; but its requests carry that name.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/expected.hpp"
#include "tools/serve/http/exchange.hpp"

namespace kvhive {

class Hosts {
 public:
  /// Addresses, localhost, and this machine's own name: no page of a stranger has one of these.
  Hosts();

  /// \param given  further names, without a port: "kv.example"; "*.example" = all below example;
  ///               "*" = any
  [[nodiscard]] static Expected<Hosts> parse(const std::vector<std::string>& given);

  /// The refusal of a request that calls this service by another name; nothing if it may. A request
  /// without the header may: no browser sends one.
  std::optional<HttpAnswer> refusal_of(const HttpRequest& request) const;

 private:
  bool allows(std::string_view host) const;

  bool all_ = false;
  std::vector<std::string> names_;     ///< in lower case
  std::vector<std::string> suffixes_;  ///< ".example": of names that end so
};

}  // namespace kvhive
