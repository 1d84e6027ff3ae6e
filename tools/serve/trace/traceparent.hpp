#pragma once
// Which trace a request belongs to, as its caller says (W3C Trace Context, level 1: the header
// traceparent).

#include <optional>
#include <string>
#include <string_view>

namespace kvhive {

struct TraceParent {
  std::string trace;   ///< 32 digits, hexadecimal
  std::string parent;  ///< the caller's span, 16 digits
};

/// Empty if the header is not there or not right: the standard says to begin a new trace then.
[[nodiscard]] std::optional<TraceParent> parse_traceparent(std::string_view header);

}  // namespace kvhive
