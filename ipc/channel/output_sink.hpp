#pragma once
// The interface through which a request's tokens are written: to a channel's slot in an engine, to
// a vector in a test.
//
// While the request waits, another engine may take it. So whoever begins to work on one that waits
// asks first. If the answer is no, the request is another engine's: the caller forgets it without a
// further call. An engine that dies is blamed for the requests that it was working on.

#include <span>
#include <string_view>

#include "ipc/channel/generation.hpp"

namespace kvhive {

class OutputSink {
 public:
  virtual ~OutputSink() = default;

  /// The request, which waits, is tokenised or replayed from now on. False = another engine has it.
  [[nodiscard]] virtual bool read() = 0;
  /// That is done: the request waits again.
  virtual void wait() = 0;
  /// The request runs from now on. False = another engine has it.
  [[nodiscard]] virtual bool start() = 0;
  /// A request that ran waits, but stays with this engine: start() will return true.
  virtual void preempted() = 0;
  /// Before admitted() and before the first token(): the request's times. An engine that takes the
  /// request over goes on with them.
  virtual void note(const RequestTimes& times) = 0;
  /// The request was admitted for the first time.
  virtual void admitted(const RequestStats& stats) = 0;
  /// Before the first token(), if the prompt is to be scored: its tokens from place `first` on.
  virtual void prompt(std::size_t first, std::span<const PromptToken> tokens) = 0;
  /// One more token, and the text that is complete with it, which may be empty.
  virtual void token(const GeneratedToken& token, std::string_view text) = 0;
  /// Before finished(), if the request only asks for room.
  virtual void room(const RoomStatus& room) = 0;
  /// The request has ended; this is the last call for it but flush(). False = it waited, and
  /// another engine has it: nothing was done. `error` is set only if the reason is
  /// FinishReason::error. `text_bytes` is the length of the whole text; if a stop string was cut
  /// off, it is less than token() was given.
  virtual bool finished(FinishReason reason, const Error& error, const RequestStats& stats,
                        std::size_t text_bytes) = 0;
  /// Wakes the reader of the results. Called once, after all other calls of one step.
  virtual void flush() = 0;
};

}  // namespace kvhive
