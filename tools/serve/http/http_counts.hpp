#pragma once
// How many HTTP requests were answered, by what answered, by method, and by status class.

#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace kvhive {

class HttpCounts {
 public:
  struct Kind {
    std::string handler, method;
    std::string status;  ///< "2xx", or "gone"
    friend auto operator<=>(const Kind&, const Kind&) = default;
  };
  /// The client left before there was a status.
  static constexpr int kGone = 0;

  /// \param handler  one of a fixed set: no text of a client's, or there would be kinds without end
  void add(std::string_view handler, std::string_view method, int status);
  const std::map<Kind, std::uint64_t>& all() const { return counts_; }

 private:
  std::map<Kind, std::uint64_t> counts_;
};

}  // namespace kvhive
