#pragma once
// Where a request's tokens go: a channel's slot in an engine, a vector in a test.

#include <string_view>

#include "ipc/generation.hpp"

namespace kvhive {

class OutputSink {
 public:
  virtual ~OutputSink() = default;

  /// The request was admitted for the first time.
  virtual void admitted(const RequestStats& stats) = 0;
  /// One more token, and the text that it completes, which may be empty.
  virtual void token(const GeneratedToken& token, std::string_view text) = 0;
  /// The last call. `error` counts only if the reason is FinishReason::error. `text_bytes` is the
  /// length of the whole text: when a stop string is cut off, less than was streamed.
  virtual void finished(FinishReason reason, const Error& error, const RequestStats& stats,
                        std::size_t text_bytes) = 0;
  /// Wakes the reader; called once after all calls of one step.
  virtual void flush() = 0;
};

}  // namespace kvhive
