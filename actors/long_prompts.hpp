#pragma once
// Tokenises long prompts in a thread of its own, because one of them may take a second, and the
// event loop serves all clients. Domains take turns, and so do the channels of a domain: whoever
// has many long prompts, in however many channels, delays another domain's prompt by one.

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "actors/messages.hpp"
#include "base/loop/background_worker.hpp"
#include "base/loop/event_loop.hpp"
#include "models/text/tokenizer.hpp"

namespace kvhive {

class LongPrompts {
 public:
  /// Called on the event loop. `tokens` is the prompt, or why it could not be tokenised.
  using OnTokens =
      std::function<void(Submission submission, Expected<std::vector<TokenId>> tokens)>;

  /// \param loop  outlives this object, but does not run any more after its destruction
  /// \param tokenizer  outlives this object
  LongPrompts(EventLoop& loop, const Tokenizer& tokenizer, OnTokens on_tokens)
      : loop_(loop), tokenizer_(tokenizer), on_tokens_(std::move(on_tokens)) {}

  /// The request waits for its turn; another engine may take it meanwhile.
  /// \param submission  without its prompt
  void add(Submission submission, std::string text);
  bool is_empty() const { return pending_.empty(); }
  /// Forgets all requests of a channel: on_tokens is never called for them.
  void forget(std::uint64_t channel);
  /// The same for the request of one slot, if there is one: its client has submitted the next.
  void forget(const RequestKey& request) { pending_.erase(request); }
  /// Ends a request, now or as soon as its text has been tokenised. False = it is not here (any
  /// more).
  bool abort(const RequestKey& request);

 private:
  enum class Stage : std::uint8_t { waits, in_work, ended };
  /// A request whose prompt is not tokenised yet. Only the event loop's thread uses it.
  struct Pending {
    Submission submission;
    /// Distinguishes it from an earlier request in the same slot. The worker has a weak pointer to
    /// it, and so sees when the request was forgotten.
    std::shared_ptr<std::atomic<Stage>> stage;
    bool is_aborted = false;
  };
  /// A channel's texts, of which the worker tokenises one after the other.
  struct Texts {
    std::mutex mutex;
    std::deque<std::function<void()>> waiting;  ///< each tokenises one text
    bool is_in_work = false;                    ///< the worker has a job for them
  };
  static bool tokenise_one(Texts& texts);
  std::optional<Submission> take_out(const RequestKey& request,
                                     const std::shared_ptr<std::atomic<Stage>>& stage);
  void deliver(const RequestKey& request, const std::shared_ptr<std::atomic<Stage>>& stage,
               Expected<std::vector<TokenId>> tokens);
  static void end_aborted(OutputSink& sink);

  EventLoop& loop_;
  const Tokenizer& tokenizer_;
  OnTokens on_tokens_;
  std::map<RequestKey, Pending> pending_;
  std::map<std::uint64_t, std::shared_ptr<Texts>> texts_;  ///< by channel
  BackgroundWorker worker_;  ///< the last member, so that it ends before what it uses
};

}  // namespace kvhive
