#include "tools/serve/http/http_counts.hpp"

#include <algorithm>
#include <array>

namespace kvhive {
namespace {

constexpr std::array<std::string_view, 7> kMethods = {"DELETE", "GET",  "HEAD", "OPTIONS",
                                                      "PATCH",  "POST", "PUT"};

}  // namespace

void HttpCounts::add(std::string_view handler, std::string_view method, int status) {
  const bool is_usual = std::find(kMethods.begin(), kMethods.end(), method) != kMethods.end();
  ++counts_[{std::string(handler), is_usual ? std::string(method) : "other",
             status == kGone ? "gone" : std::to_string(status / 100) + "xx"}];
}

}  // namespace kvhive
