#pragma once
// KV_CHECK(condition, values...): an assertion whose failure is a bug in kvhive, never an error of
// the user. It is on in every build. If the condition is false, it prints the expression and the
// values, and aborts the process. The shared pool survives that, and the keeper starts another
// engine.

#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>

namespace kvhive::detail {

/// Prints the line of a failed check. The log sets it (base/log.cpp): with a log, the line comes
/// after the log's lines, and a reader of standard error that is stuck does not keep the process
/// alive.
inline void (*print_failed_check)(const std::string& line) = [](const std::string& line) {
  std::fprintf(stderr, "%s\n", line.c_str());
};

template <class... Values>
[[noreturn]] void check_failed(const char* file, int line, const char* expression,
                               const Values&... values) {
  std::ostringstream text;
  text << file << ':' << line << ": check failed: " << expression << ':';
  ((text << ' ' << values), ...);
  print_failed_check(text.str());
  std::abort();
}

}  // namespace kvhive::detail

#define KV_CHECK(condition, ...)                                                                 \
  do {                                                                                           \
    if (!(condition)) [[unlikely]]                                                               \
      ::kvhive::detail::check_failed(__FILE__, __LINE__, #condition __VA_OPT__(, ) __VA_ARGS__); \
  } while (false)
