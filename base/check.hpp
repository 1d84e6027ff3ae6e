#pragma once
// KV_CHECK: a bug of ours, not the user's. Always on; prints the expression and the values, then
// aborts the process (crash-only: the keeper starts another engine, and the pool was built to
// survive exactly this).

#include <cstdio>
#include <cstdlib>
#include <sstream>

namespace kvhive::detail {

template <class... Values>
[[noreturn]] void check_failed(const char* file, int line, const char* expression,
                               const Values&... values) {
  std::ostringstream text;
  ((text << ' ' << values), ...);
  std::fprintf(stderr, "%s:%d: check failed: %s:%s\n", file, line, expression, text.str().c_str());
  std::abort();
}

}  // namespace kvhive::detail

#define KV_CHECK(condition, ...)                                                                 \
  do {                                                                                           \
    if (!(condition)) [[unlikely]]                                                               \
      ::kvhive::detail::check_failed(__FILE__, __LINE__, #condition __VA_OPT__(, ) __VA_ARGS__); \
  } while (false)
