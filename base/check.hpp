#pragma once
// KV_CHECK(condition, values...): an assertion whose failure is a bug in kvhive, never an error of
// the user. It is on in every build. If the condition is false, it prints the expression and the
// values, and aborts the process. The shared pool survives that, and the keeper starts another
// engine.

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
