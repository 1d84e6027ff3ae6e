#pragma once
// Reads long prompts in a thread of its own: to tokenise one may take a second, and one that is
// given as embeddings has a gigabyte, and the event loop serves all clients. Domains take turns,
// and so do the channels of a domain: whoever has many long prompts, in however many channels,
// delays another domain's prompt by one.

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

namespace kvhive {

/// A prompt as the scheduler takes it (Submission).
struct Prompt {
  std::vector<TokenId> tokens;
  std::shared_ptr<const EmbeddedPrompt> embedded{};
};

class LongPrompts {
 public:
  /// Called in the other thread.
  using Read = std::function<Expected<Prompt>()>;
  /// Called on the event loop. `prompt` is what was read, or why it could not be.
  using OnPrompt = std::function<void(Submission submission, Expected<Prompt> prompt)>;

  /// \param loop  outlives this object, but does not run any more after its destruction
  LongPrompts(EventLoop& loop, OnPrompt on_prompt)
      : loop_(loop), on_prompt_(std::move(on_prompt)) {}

  /// The request waits for its turn; another engine may take it meanwhile.
  /// \param submission  without its prompt
  void add(Submission submission, Read read);
  bool is_empty() const { return pending_.empty(); }
  /// Forgets all requests of a channel: on_prompt is never called for them.
  void forget(std::uint64_t channel);
  /// The same for the request of one slot, if there is one: its client has submitted the next.
  void forget(const RequestKey& request) { pending_.erase(request); }
  /// Ends a request, now or as soon as its prompt has been read. False = it is not here (any
  /// more).
  bool abort(const RequestKey& request);

 private:
  enum class Stage : std::uint8_t { waits, in_work, ended };
  /// A request whose prompt is not read yet. Only the event loop's thread uses it.
  struct Pending {
    Submission submission;
    /// Distinguishes it from an earlier request in the same slot. The worker has a weak pointer to
    /// it, and so sees when the request was forgotten.
    std::shared_ptr<std::atomic<Stage>> stage;
    bool is_aborted = false;
  };
  /// A channel's prompts, of which the worker reads one after the other.
  struct Prompts {
    std::mutex mutex;
    std::deque<std::function<void()>> waiting;  ///< each reads one
    bool is_in_work = false;                    ///< the worker has a job for them
  };
  static bool read_one(Prompts& prompts);
  std::optional<Submission> take_out(const RequestKey& request,
                                     const std::shared_ptr<std::atomic<Stage>>& stage);
  void deliver(const RequestKey& request, const std::shared_ptr<std::atomic<Stage>>& stage,
               Expected<Prompt> prompt);
  static void end_aborted(OutputSink& sink);

  EventLoop& loop_;
  OnPrompt on_prompt_;
  std::map<RequestKey, Pending> pending_;
  std::map<std::uint64_t, std::shared_ptr<Prompts>> prompts_;  ///< by channel
  BackgroundWorker worker_;  ///< the last member, so that it ends before what it uses
};

}  // namespace kvhive
