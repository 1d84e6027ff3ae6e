#pragma once
// A client and an engine, made of the real ends of a channel, that work through requests whose
// every token is known beforehand. Each checks all that it reads.
//
// A request's number determines its prompt and its tokens. Requests from kPatient on are never
// generated: they end when they are aborted.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ipc/channel/client_channel.hpp"
#include "ipc/channel/engine_channel.hpp"
#include "tests/support/channel_memory.hpp"

namespace kvhive::testing {

inline constexpr std::uint32_t kStoryTokens = 4;  ///< of each request
inline constexpr std::uint32_t kPatient = 100;
inline constexpr std::uint32_t kQuestion = 10;   ///< this request only asks for room
inline constexpr std::uint32_t kStorySlots = 5;  ///< no story uses the slots after them

/// Odd numbers have a text prompt, even ones a prompt of tokens.
ChannelRequest request_of(std::uint32_t number);

/// What the processes of a story say to the test.
struct StoryStatus {
  std::uint32_t open;     ///< requests whose end the client has not read
  std::uint32_t running;  ///< requests that the engine has taken and can end
  std::uint32_t must_conclude;
  std::uint32_t complaints;
  char first[240];  ///< the first complaint

  void complain(const std::string& text);
};

/// Reads only when its bell rings, as a client of the library does.
class StoryClient {
 public:
  /// \param bell  readable when the engine has rung; stays open
  StoryClient(ClientChannel channel, int bell, StoryStatus& status);

  /// Returns the slot.
  std::uint32_t submit(std::uint32_t number, const ChannelRequest& request);
  std::uint32_t submit(std::uint32_t number) { return submit(number, request_of(number)); }
  /// True if the request has ended.
  bool read(std::uint32_t slot);
  void read_all();
  void abort(std::uint32_t slot);
  /// An engine may end the request with an error.
  void allow_refusal(std::uint32_t slot) { open_.at(slot).may_be_refused = true; }
  /// Reads all requests if the bell has rung.
  void wake();
  /// Wakes, and checks that nothing was there while it slept; if told to conclude, checks that
  /// nothing is left of the requests so far, and submits another that needs the whole heap.
  void turn();

  bool has(std::uint32_t slot) const { return open_.count(slot) != 0; }
  ClientChannel& channel() { return channel_; }
  const AnswerSlot& answer(std::uint32_t slot) const;
  /// What the client itself has written.
  RequestMark& mark(std::uint32_t slot) const;
  RequestBody& body(std::uint32_t slot) const;

 private:
  struct Open {
    std::uint32_t number = 0;
    std::uint32_t tokens = 0;
    std::string text;
    bool was_aborted = false;
    bool may_be_refused = false;
  };
  /// Called while the engine does nothing and the bell is silent.
  void check_has_seen_all();
  void check_tokens(Open& open, const ChannelProgress& progress);
  void check_end(const Open& open, const ChannelProgress& progress);
  void conclude();

  ClientChannel channel_;
  int bell_;
  StoryStatus* status_;
  std::map<std::uint32_t, Open> open_;
  bool has_concluded_ = false;
};

/// Does with a channel what port and scheduler do, and sleeps until its bell rings.
class StoryEngine {
 public:
  struct Request {
    std::uint32_t number = 0;
    std::uint32_t tokens = 0;
    std::unique_ptr<OutputSink> sink;
    bool is_running = false;
  };

  /// \param requests, answers  for looking at what the engine should have heard
  /// \param bell  the client rings it; stays open
  StoryEngine(std::shared_ptr<EngineChannel> channel, std::byte* requests, std::byte* answers,
              int bell, StoryStatus& status);

  /// One call of take_submitted(), with `limits`, `most_bytes` and `help`. Returns whether there is
  /// more.
  bool receive();
  /// Checks what was received, and makes it the engine's.
  void adopt();
  void take();  ///< both, for all that was submitted
  /// If its bell has rung: takes requests and sees aborts. False if it has not rung.
  bool hear();
  /// Ends the requests whose clients want it.
  void see_aborts();
  /// The request's next token, without ringing. If another engine has the request, forgets it.
  void generate(std::uint32_t slot);
  void generate_all(std::uint32_t slot);
  void preempt(std::uint32_t slot);
  void finish(std::uint32_t slot, FinishReason reason = FinishReason::length);
  void refuse(std::uint32_t slot);
  /// Answers a request that only asks. If another engine has it, forgets it.
  void answer(std::uint32_t slot);
  void ring() { channel_->ring(); }
  void end_all();  ///< all requests that it has and can end, a ring after each token
  /// Takes also what waits elsewhere.
  void take_all_that_waits();
  /// Hears; if there is nothing to hear, it takes what waits elsewhere, and ends all that it can.
  void turn();
  /// Gives the channel up, as when the client is gone.
  void close();

  bool has(std::uint32_t slot) const { return requests_.count(slot) != 0; }
  Request& request(std::uint32_t slot) { return requests_.at(slot); }
  std::size_t received() const { return received_.size(); }
  std::optional<std::uint32_t> first_request() const;
  PromptLimits limits;
  std::size_t most_bytes = ~std::size_t{0};
  std::size_t help = 0;

 private:
  void adopt(const TakenRequest& taken);
  /// Called while the client does nothing and the bell is silent.
  void check_has_heard_all();
  std::uint32_t running() const;

  std::shared_ptr<EngineChannel> channel_;
  std::byte *raw_requests_, *raw_answers_;
  int bell_;
  StoryStatus* status_;
  std::vector<TakenRequest> received_;
  std::map<std::uint32_t, Request> requests_;  ///< by slot
  /// It looks at the channel before anything has rung: it is new, or has lost a request.
  bool must_look_ = true;
};

}  // namespace kvhive::testing
