#pragma once
// The interface through which a request's tokens are written: to a channel's slot in an engine, to
// a vector in a test.

#include <string_view>

#include "ipc/channel/generation.hpp"

namespace kvhive {

class OutputSink {
 public:
  virtual ~OutputSink() = default;

  /// True = the engine works on the request from now on (tokenises or runs it); false = the request
  /// waits. An engine that dies is blamed on the requests that it was working on.
  virtual void set_running(bool is_running) = 0;
  /// The request was admitted for the first time.
  virtual void admitted(const RequestStats& stats) = 0;
  /// One more token, and the text that is complete with it, which may be empty.
  virtual void token(const GeneratedToken& token, std::string_view text) = 0;
  /// The request has ended; this is the last call for it but flush(). `error` is set only if the
  /// reason is FinishReason::error. `text_bytes` is the length of the whole text; if a stop string
  /// was cut off, it is less than token() was given.
  virtual void finished(FinishReason reason, const Error& error, const RequestStats& stats,
                        std::size_t text_bytes) = 0;
  /// Wakes the reader of the results. Called once, after all other calls of one step.
  virtual void flush() = 0;
};

}  // namespace kvhive
