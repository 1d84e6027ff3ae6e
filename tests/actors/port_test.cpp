// The port between channels of this process and a scheduler that records what it is sent.

#include "actors/port.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>
#include <mutex>

#include "base/check.hpp"
#include "base/stop_watch.hpp"
#include "hashing/cache_salt.hpp"
#include "ipc/channel/client_channel.hpp"
#include "ipc/channel/doorbell.hpp"
#include "models/text/tokenizer_parser.hpp"
#include "tests/support/board.hpp"
#include "tests/support/channel_memory.hpp"

namespace {

/// A look at a channel is two of these; more if it takes something.
std::atomic<std::size_t> preads{0};

}  // namespace

/// Instead of the C library's.
extern "C" ssize_t pread(int fd, void* to, size_t bytes, off_t at) {
  ++preads;
  return syscall(SYS_pread64, fd, to, bytes, at);
}

namespace kvhive::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

/// What the scheduler was sent. Its actor runs in a thread of CAF.
struct Sent {
  std::mutex mutex;
  std::vector<Submission> submissions;
  std::vector<RequestKey> aborted;
  std::vector<std::uint64_t> closed;
  std::vector<NewLimits> limits;
  std::vector<std::size_t> before_limits;  ///< submissions that each of them came after
  std::size_t batches = 0;
  bool refuses = false;  ///< all that comes, as overloaded
};

SchedulerHandle::behavior_type recording_scheduler(SchedulerHandle::pointer, Sent* sent) {
  return {
      [sent](SubmitBatch& batch) {
        const std::lock_guard lock(sent->mutex);
        ++sent->batches;
        for (auto& submission : batch.submissions) {
          if (sent->refuses)
            submission.sink->finished(FinishReason::error, {Errc::overloaded, "too much"}, {}, 0);
          sent->submissions.push_back(std::move(submission));
        }
      },
      [sent](const AbortBatch& batch) {
        const std::lock_guard lock(sent->mutex);
        sent->aborted.insert(sent->aborted.end(), batch.requests.begin(), batch.requests.end());
        sent->closed.insert(sent->closed.end(), batch.channels.begin(), batch.channels.end());
      },
      [](TellWhenEmpty& order) { order.tell(); },
      [sent](const NewLimits& limits) {
        const std::lock_guard lock(sent->mutex);
        sent->limits.push_back(limits);
        sent->before_limits.push_back(sent->submissions.size());
      },
      [](Retry) {},
      [](ReplayMore) {},
      [](LookAfterTails) {}};
}

/// One client's channel with both ends.
struct Line {
  Line(Port& port, const Member& engine, std::uint64_t id, DomainId domain,
       const DomainShare& share = {})
      : client(ClientChannel::open(copy_of(memory.requests), memory.answers, kBytes,
                                   copy_of(engine_bell))
                   .value()) {
    auto channel = EngineChannel::open(id, engine, copy_of(memory.requests), memory.answers, kBytes,
                                       direct_ring(std::move(bell.engine_end)));
    port.open(std::move(*channel), copy_of(engine_bell), domain, share);
  }
  std::uint32_t submit_text(std::size_t bytes) {
    ChannelRequest request;
    for (std::size_t i = 0; i < bytes; ++i) request.prompt += "word "[i % 5];
    return client.submit(request).value();
  }
  std::uint32_t submit_tokens(std::size_t count) {
    ChannelRequest request;
    request.prompt_tokens.assign(count, 7);
    return client.submit(request).value();
  }

  static constexpr std::size_t kBytes = std::size_t{4} << 20;
  ChannelMemory memory = make_channel_memory(kBytes);
  UniqueFd engine_bell = make_engine_bell().value();
  ClientBell bell = make_client_bell().value();
  ClientChannel client;
};

class PortTest : public ::testing::Test {
 protected:
  ~PortTest() override {
    lines_.clear();
    port_.reset();
    caf::anon_send_exit(scheduler_, caf::exit_reason::kill);
  }

  void make_port(const PromptLimits& limits = {}, std::vector<std::string> adapters = {}) {
    port_.emplace(loop_, scheduler_, tokenizer_,
                  PortLimits{0, limits, self_, nullptr, std::move(adapters)});
  }
  Line& line(std::uint64_t id, DomainId domain = DomainId{0}) {
    return lines_.try_emplace(id, *port_, self_, id, domain).first->second;
  }
  /// How many submissions of other channels arrived before the channel's first one.
  std::size_t place_of(std::uint64_t channel) {
    const auto channels = arrived();
    return static_cast<std::size_t>(std::find(channels.begin(), channels.end(), channel) -
                                    channels.begin());
  }
  /// Gives up after twenty seconds, so that a mistake does not hang the test.
  void run_until(const std::function<bool()>& holds) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    const std::function<void()> look = [&] {
      if (holds()) return loop_.stop();
      if (std::chrono::steady_clock::now() > end) {
        ADD_FAILURE() << "it does not happen";
        return loop_.stop();
      }
      loop_.after(std::chrono::milliseconds(1), look);
    };
    look();
    loop_.run();
  }
  /// The channels of the submissions so far, in the order of their arrival.
  std::vector<std::uint64_t> arrived() {
    const std::lock_guard lock(sent_.mutex);
    std::vector<std::uint64_t> channels;
    for (const Submission& submission : sent_.submissions)
      channels.push_back(submission.key.channel);
    return channels;
  }
  bool has_arrived(const RequestKey& request) {
    const std::lock_guard lock(sent_.mutex);
    return std::ranges::any_of(
        sent_.submissions, [&](const Submission& submission) { return submission.key == request; });
  }
  /// Another engine's end of the channel `id`.
  static std::shared_ptr<EngineChannel> take_part(Line& line, std::uint64_t id,
                                                  const Member& other) {
    return EngineChannel::open(id, other, copy_of(line.memory.requests), line.memory.answers,
                               Line::kBytes, direct_ring(UniqueFd()))
        .value();
  }
  /// Ten long texts, of which the port has tokenised one or more, and the other engine takes the
  /// rest.
  std::vector<TakenRequest> steal_long_texts(Line& line, EngineChannel& other) {
    for (int i = 0; i < 10; ++i) line.submit_text(200'000);
    run_until([&] { return !arrived().empty(); });
    return other.take_submitted({}, 64 << 20, 64);
  }
  /// The end of a request in a slot, if it has come.
  ChannelProgress read(Line& line, std::uint32_t slot) { return line.client.read(slot); }

  const Tokenizer tokenizer_ = load_tokenizer(KVHIVE_DEMO_DIR).value();
  Sent sent_;
  ActorConfig config_;
  caf::actor_system system_{config_};
  SchedulerHandle scheduler_ = system_.spawn(recording_scheduler, &sent_);
  TestBoard board_;
  Member self_ = board_.join();
  EventLoop loop_ = EventLoop::create().value();
  std::optional<Port> port_;
  std::map<std::uint64_t, Line> lines_;
};

TEST_F(PortTest, ShortAndLongTextsArriveTokenised) {
  make_port();
  line(1).submit_text(100);
  line(1).submit_text(100'000);
  run_until([&] { return arrived().size() == 2; });
  EXPECT_EQ(board_->load_of(self_.life).room, 62u);
  const std::lock_guard lock(sent_.mutex);
  std::vector<std::size_t> lengths;
  for (const Submission& submission : sent_.submissions)
    lengths.push_back(submission.prompt.size());
  std::sort(lengths.begin(), lengths.end());
  std::string long_text;
  for (std::size_t i = 0; i < 100'000; ++i) long_text += "word "[i % 5];
  EXPECT_EQ(lengths.back(), tokenizer_.encode(long_text, AddSpecial::yes)->size());
}

TEST_F(PortTest, AChannelWithMuchToTakeDoesNotDelayAnother) {
  make_port();
  Line &greedy = line(1), &modest = line(2);
  for (int i = 0; i < 100; ++i) greedy.submit_tokens(4096);  // 16 KiB each
  modest.submit_tokens(10);
  run_until([&] { return arrived().size() == 101; });
  const auto channels = arrived();
  EXPECT_LT(std::find(channels.begin(), channels.end(), 2) - channels.begin(), 20);
}

TEST_F(PortTest, AChannelWithManyLongTextsDelaysAnothersByOne) {
  make_port();
  Line &greedy = line(1), &modest = line(2);
  for (int i = 0; i < 20; ++i) greedy.submit_text(100'000);
  modest.submit_text(20'000);
  run_until([&] { return arrived().size() == 21; });
  const auto channels = arrived();
  // The first may be tokenised before the second channel is looked at, and one more while it is.
  EXPECT_LE(std::find(channels.begin(), channels.end(), 2) - channels.begin(), 3);
}

TEST_F(PortTest, ManyChannelsOfADomainDelayAnotherDomainByATurn) {
  make_port();
  for (std::uint64_t channel = 1; channel <= 25; ++channel)
    for (int i = 0; i < 4; ++i) line(channel, DomainId{1}).submit_tokens(4096);  // 2 in a turn
  line(100, DomainId{2}).submit_tokens(10);
  run_until([&] { return arrived().size() == 101; });
  EXPECT_LT(place_of(100), 10u);
}

TEST_F(PortTest, LongTextsInManyChannelsOfADomainDelayAnotherDomainByOne) {
  make_port();
  for (std::uint64_t channel = 1; channel <= 20; ++channel)
    line(channel, DomainId{1}).submit_text(200'000);
  run_until([&] { return !arrived().empty(); });
  line(100, DomainId{2}).submit_text(20'000);
  const std::size_t before = arrived().size();
  run_until([&] { return arrived().size() == 21; });
  EXPECT_LE(place_of(100), before + 3);  // as above
}

TEST_F(PortTest, APromptThatIsTooLongIsRefusedBeforeItIsCopied) {
  make_port({.text_bytes = 1000, .tokens = 64, .remedy = "shorten it"});
  const std::uint32_t text = line(1).submit_text(1001), tokens = line(1).submit_tokens(64);
  line(1).submit_tokens(63);
  run_until([&] { return arrived().size() == 1; });
  const ChannelProgress long_text = read(line(1), text), long_tokens = read(line(1), tokens);
  EXPECT_EQ(long_text.error.code, Errc::never_fits);
  EXPECT_THAT(long_text.error.text, HasSubstr("1001 bytes, which is more than 1000"));
  EXPECT_EQ(long_tokens.error.code, Errc::never_fits);
  EXPECT_THAT(long_tokens.error.text, HasSubstr("64 tokens; a request may have 64"));
}

TEST_F(PortTest, TheSchedulerLearnsTheDomainsShareAndThatNoEngineHadTheRequest) {
  make_port();
  const DomainShare share{.weight = 3, .max_num_seqs = 2, .max_queued_tokens = 500};
  lines_.try_emplace(1, *port_, self_, 1, DomainId{7}, share).first->second.submit_tokens(10);
  run_until([&] { return arrived().size() == 1; });
  const std::lock_guard lock(sent_.mutex);
  EXPECT_EQ(sent_.submissions.front().share, share);
  EXPECT_TRUE(sent_.submissions.front().is_new);
}

TEST_F(PortTest, ACacheSaltArrivesAsItsKeyWithShortAndLongPromptsAndTokens) {
  make_port();
  ChannelRequest requests[3];
  requests[0].prompt = "In the beginning";
  requests[1].prompt = std::string(20'000, 'a');
  requests[2].prompt_tokens = {7, 8};
  for (ChannelRequest& request : requests) {
    request.params.cache_salt = "alice";
    ASSERT_TRUE(line(1).client.submit(request).has_value());
  }
  line(2).submit_tokens(10);
  run_until([&] { return arrived().size() == 4; });
  const std::lock_guard lock(sent_.mutex);
  for (const Submission& submission : sent_.submissions)
    EXPECT_EQ(submission.salt, salt_key(submission.key.channel == 1 ? "alice" : ""));
}

TEST_F(PortTest, AnAdapterArrivesAsItsNumberAndAnUnknownOneIsRefused) {
  make_port({}, {"poet", "lawyer"});
  for (const char* adapter : {"", "lawyer", "painter", "poet"}) {
    ChannelRequest request;
    request.prompt_tokens = {7, 8};
    request.params.adapter = adapter;
    ASSERT_TRUE(line(1).client.submit(request).has_value());
  }
  run_until([&] { return arrived().size() == 3; });
  EXPECT_EQ(board_->load_of(self_.life).room, 61u)
      << "the board counts what the scheduler was sent";
  const std::lock_guard lock(sent_.mutex);
  std::map<std::string, std::int32_t> numbers;
  for (const Submission& submission : sent_.submissions) {
    numbers[submission.params.adapter] = submission.adapter;
    EXPECT_EQ(submission.salt, start_key("", submission.params.adapter));
  }
  EXPECT_EQ(numbers, (std::map<std::string, std::int32_t>{{"", -1}, {"poet", 0}, {"lawyer", 1}}));
}

/// A client that has made room for fewer tokens than its text turns out to have.
TEST_F(PortTest, ScoresHaveRoomForWhatTheClientSays) {
  ChannelRequest request;
  request.prompt = "In the beginning";
  request.params.prompt_logprobs = 2;
  make_port();
  ASSERT_TRUE(line(1).client.submit(request).has_value());
  run_until([&] { return arrived().size() == 1; });
  const std::lock_guard lock(sent_.mutex);
  EXPECT_EQ(sent_.submissions.front().most_scored, request.prompt.size() + 16);
}

TEST_F(PortTest, AnEngineThatIsDrainedTakesNoMoreAndSaysWhenWhatItTookHasEnded) {
  make_port();
  for (int i = 0; i < 3; ++i) line(1).submit_text(200'000);
  bool is_drained = false;
  run_until([&] { return !arrived().empty(); });
  port_->take_no_more([&] { is_drained = true; });
  EXPECT_FALSE(self_.board->turn(self_.life, {})) << "no engine has turns any more";
  line(2).submit_tokens(10);
  run_until([&] { return is_drained; });
  EXPECT_EQ(arrived().size(), 3u)
      << "the long texts were waited for, the new request was not taken";
}

TEST_F(PortTest, AShareThatChangesIsTheSchedulersAndThatOfWhatComes) {
  make_port();
  const DomainShare share{.weight = 2, .max_num_seqs = 9, .max_queued_tokens = 50};
  Line& changed = lines_.try_emplace(1, *port_, self_, 1, DomainId{7}).first->second;
  port_->set_share(DomainId{7}, share);
  port_->set_queue_limit(77);
  changed.submit_tokens(10);
  run_until([&] { return arrived().size() == 1; });
  const std::lock_guard lock(sent_.mutex);
  EXPECT_EQ(sent_.submissions.front().share, share);
  EXPECT_EQ(sent_.limits.at(0).share, std::pair(DomainId{7}, share));
  EXPECT_EQ(sent_.limits.at(1).max_queued_tokens, 77u);
}

TEST_F(PortTest, AShareThatChangesWhileAPromptIsReadIsThatOfThePrompt) {
  make_port();
  Line& changed = lines_.try_emplace(1, *port_, self_, 1, DomainId{7}).first->second;
  constexpr std::size_t kTexts = 12;  // they are not all read before the share changes
  for (std::size_t i = 0; i < kTexts; ++i) changed.submit_text(200'000);
  run_until([&] { return !arrived().empty(); });
  const DomainShare share{.weight = 2, .max_num_seqs = 9, .max_queued_tokens = 50};
  port_->set_share(DomainId{7}, share);
  run_until([&] { return arrived().size() == kTexts; });
  const std::lock_guard lock(sent_.mutex);
  const std::size_t before = sent_.before_limits.at(0);
  ASSERT_LT(before, kTexts);
  for (std::size_t i = before; i < kTexts; ++i) EXPECT_EQ(sent_.submissions[i].share, share) << i;
}

/// Else others would take an engine that hangs for one that goes on, for as long as somebody sends
/// it long texts.
TEST_F(PortTest, WhatIsReadIsNoStep) {
  make_port();
  board_->tell_load(self_.life, {64, 0}, 0, true);
  for (int i = 0; i < 15; ++i) line(1).submit_text(100'000);
  for (std::size_t i = 1; i <= Board::kLooks + 1; ++i) {
    run_until([&] { return arrived().size() >= i; });
    board_->look();
  }
  EXPECT_TRUE(board_->is_silent(self_.life));
}

TEST_F(PortTest, AnAbortReachesAPromptThatIsNotTokenisedYet) {
  make_port();
  std::vector<std::uint32_t> slots;
  for (int i = 0; i < 10; ++i) slots.push_back(line(1).submit_text(200'000));
  for (const std::uint32_t slot : slots) line(1).client.abort(slot);
  std::size_t ended = 0;
  run_until([&] {
    std::erase_if(slots, [&](std::uint32_t slot) {
      const bool has_ended = line(1).client.read(slot).reason == FinishReason::abort;
      ended += has_ended;
      return has_ended;
    });
    const std::lock_guard lock(sent_.mutex);
    return ended + sent_.aborted.size() == 10;
  });
  EXPECT_GE(ended, 8u) << "at most two were tokenised before the abort was seen";
}

/// A client with much on its bells must not stop the loop when it leaves.
TEST_F(PortTest, WhatAClosedChannelsClientHasTooIsClosedWhereTheClientIsRung) {
  struct Keeping : ClientRing {
    explicit Keeping(std::vector<int>& place) : closed(place) {}
    void ring() override {}
    void close(UniqueFd shared) override { closed.push_back(shared.get()); }
    std::vector<int>& closed;
  };
  make_port();
  Line& other = line(2);
  UniqueFd bell = copy_of(other.engine_bell), requests = copy_of(other.memory.requests);
  std::vector<int> closed;
  const std::vector<int> shared{bell.get(), requests.get()};
  auto channel = EngineChannel::open(1, self_, std::move(requests), other.memory.answers,
                                     Line::kBytes, std::make_unique<Keeping>(closed));
  port_->open(std::move(*channel), std::move(bell), DomainId{0});
  EXPECT_THAT(closed, IsEmpty());
  port_->close(1);
  EXPECT_EQ(closed, shared);
}

/// A lower bound of time, since nothing else shows a rest. Several times: on a busy machine it may
/// take so long without a rest, too, but not each time.
TEST_F(PortTest, ADomainThatWastesItsTurnsHasNoneForAWhile) {
  make_port();
  constexpr std::uint64_t kRounds = 4, kChannels = 8;
  const auto refused = [&](std::uint64_t id) {
    const SlotState last =
        answer_in(line(id).client.raw_answers().data(), kChannelSlots - 1).state.load();
    return last.number != 0 && last.phase() == Phase::finished;
  };
  for (std::uint64_t round = 0; round < kRounds; ++round) {
    const std::uint64_t first = 1 + round * kChannels, end = first + kChannels;
    const auto start = std::chrono::steady_clock::now();
    for (std::uint64_t id = first; id != end; ++id) {
      Line& hostile = line(id);
      for (std::size_t slot = 0; slot < kChannelSlots; ++slot)
        submit_raw(hostile.client.raw_requests().data(), slot, RequestBody{});
      ring_engine(hostile.engine_bell.get());
    }
    run_until([&] {
      for (std::uint64_t id = first; id != end; ++id)
        if (!refused(id)) return false;
      return true;
    });
    EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(100));
  }
  line(1 + kRounds * kChannels).submit_tokens(10);
  run_until([&] { return arrived().size() == 1; });
}

/// Compared with the time that it computes: on a busy machine all is slower.
TEST_F(PortTest, ADomainWhoseRequestsAreReadAndRefusedTakesAFewHundredthsOfTheTime) {
  make_port();
  sent_.refuses = true;
  Line& hostile = line(1);
  const auto start = std::chrono::steady_clock::now();
  const auto computed = thread_cpu_time();
  constexpr std::size_t kRequests = 240;
  for (std::size_t i = 0; i < kRequests; ++i) hostile.submit_text(15'000);
  run_until([&] { return arrived().size() == kRequests; });
  EXPECT_GE(std::chrono::steady_clock::now() - start, 3 * (thread_cpu_time() - computed));
}

/// Every 20 ms, however long the requests take to come.
TEST_F(PortTest, WhatComesWhileRequestsAreRefusedAsOverloadedIsTakenTogether) {
  make_port();
  sent_.refuses = true;
  line(1).submit_tokens(10);
  run_until([&] { return arrived().size() == 1; });  // from now on it knows
  constexpr std::size_t kRequests = 50;
  std::size_t submitted = 0;
  const std::size_t before = sent_.batches;
  const auto start = std::chrono::steady_clock::now();
  const std::function<void()> submit = [&] {
    line(1).submit_tokens(10);
    if (++submitted < kRequests) loop_.after(std::chrono::milliseconds(1), submit);
  };
  submit();
  run_until([&] { return arrived().size() == 1 + kRequests; });
  const auto windows = (std::chrono::steady_clock::now() - start) / std::chrono::milliseconds(20);
  EXPECT_LE(sent_.batches - before, static_cast<std::size_t>(windows) + 3);
}

/// At a pace at which something new is always there when the channel is looked at.
TEST_F(PortTest, WhatComesAfterTheLastRefusalIsSoonTakenAtOnceAgain) {
  make_port();
  sent_.refuses = true;
  line(1).submit_tokens(10);
  run_until([&] { return arrived().size() == 1; });
  {
    const std::lock_guard lock(sent_.mutex);
    sent_.refuses = false;
  }
  std::size_t submitted = 1, batches_before = 0;
  constexpr std::size_t kRequests = 100, kAtLast = 50;
  const std::function<void()> submit = [&] {
    line(1).submit_tokens(10);
    if (++submitted == kRequests - kAtLast) {
      const std::lock_guard lock(sent_.mutex);
      batches_before = sent_.batches;
    }
    if (submitted < kRequests) loop_.after(std::chrono::milliseconds(4), submit);
  };
  submit();
  run_until([&] { return arrived().size() == kRequests; });
  EXPECT_GT(sent_.batches - batches_before, kAtLast / 2);
}

TEST_F(PortTest, AClosedChannelsPromptsAreForgotten) {
  make_port();
  std::vector<std::uint32_t> slots{
      line(1).submit_text(3'000'000)};  // read for longer than it takes
  for (int i = 0; i < 10; ++i) slots.push_back(line(1).submit_text(20'000));  // to take these
  run_until([&] {
    return std::all_of(slots.begin(), slots.end(), [&](std::uint32_t slot) {
      return answer_in(line(1).client.raw_answers().data(), slot).state.load() != SlotState{};
    });
  });
  port_->close(1);
  for (int i = 0; i < 12; ++i) line(2).submit_text(20'000);  // the channels would take turns
  const auto arrived_of = [&](std::uint64_t channel) {
    const auto channels = arrived();
    return std::count(channels.begin(), channels.end(), channel);
  };
  run_until([&] { return arrived_of(2) == 12; });
  EXPECT_LT(arrived_of(1), 5);
  const std::lock_guard lock(sent_.mutex);
  EXPECT_THAT(sent_.closed, ElementsAre(1));
}

/// A client names the same prompt in all its slots again and again.
TEST_F(PortTest, WhatNeedsTooMuchMemoryIsTakenWhenOtherRequestsHaveEnded) {
  make_port();
  Line& hostile = line(1);
  for (int i = 0; i < 6; ++i) hostile.submit_tokens(100'000);
  line(2).submit_tokens(10);
  run_until([&] { return arrived().size() == 7; });
  std::byte* const requests = hostile.client.raw_requests().data();
  const auto state = [&] {
    return answer_in(hostile.client.raw_answers().data(), 100).state.load();
  };
  RequestBody body = body_in(requests, 0);
  body.prompt.bytes = Line::kBytes / 2;
  submit_raw(requests, 100, body);
  ring_engine(hostile.engine_bell.get());
  line(2).submit_tokens(10);  // its turn comes after the hostile channel's
  run_until([&] { return arrived().size() == 8; });
  EXPECT_EQ(state(), SlotState{}) << "it waits";
  std::vector<Submission> ended;
  {
    const std::lock_guard lock(sent_.mutex);
    ended.swap(sent_.submissions);
  }
  ended.clear();
  run_until([&] { return arrived().size() == 1; });
  EXPECT_EQ(state().phase(), Phase::waiting);
}

/// Also when they have been read; here a client names the same rows in several slots.
TEST_F(PortTest, EmbeddingsCountInTheMemoryThatIsHeld) {
  make_port({.embedding_width = 1024});
  Line& hostile = line(1);
  ChannelRequest request;
  request.embedding_width = 1024;
  request.prompt_embeds.resize(Line::kBytes * 3 / 4 / sizeof(float), 0.5f);
  ASSERT_TRUE(hostile.client.submit(request).has_value());
  std::byte* const requests = hostile.client.raw_requests().data();
  const RequestBody body = body_in(requests, 0);
  for (std::uint32_t slot = 100; slot < 105; ++slot) submit_raw(requests, slot, body);
  ring_engine(hostile.engine_bell.get());
  run_until([&] { return arrived().size() == 3; });
  line(2).submit_tokens(10);
  ring_engine(hostile.engine_bell.get());
  run_until([&] { return arrived().size() == 4; });
  EXPECT_EQ(arrived().back(), 2u);
  std::byte* const answers = hostile.client.raw_answers().data();
  for (const std::uint32_t slot : {102u, 103u, 104u})
    EXPECT_EQ(answer_in(answers, slot).state.load(), SlotState{})
        << "three have what is allowed for the channel";
  std::vector<Submission> ended;
  {
    const std::lock_guard lock(sent_.mutex);
    ended.swap(sent_.submissions);
  }
  EXPECT_EQ(ended.front().prompt, std::vector<TokenId>(768, kEmbedded));
  EXPECT_EQ(ended.front().embedded->rows(), 768u);
  ended.clear();
  run_until([&] { return arrived().size() == 3; });
}

/// It is read elsewhere: a value that is no number refuses the request, and nothing else.
TEST_F(PortTest, EmbeddingsThatAreNoNumbersAreRefused) {
  make_port({.embedding_width = 2});
  ChannelRequest request;
  request.embedding_width = 2;
  request.prompt_embeds = {1, 2, 3, std::nanf("")};
  const std::uint32_t slot = line(1).client.submit(request).value();
  line(1).submit_tokens(10);
  run_until([&] { return arrived().size() == 1; });
  std::string error;
  run_until([&] {
    const auto progress = line(1).client.read(slot);
    error = progress.error.text;
    return progress.reason == FinishReason::error;
  });
  EXPECT_THAT(error, HasSubstr("value 1 of row 1 is nan"));
}

// -- other engines have the channels, too

TEST_F(PortTest, WhatAStoppedEngineDoesNotTakeIsTakenAfterAWhile) {
  make_port();
  board_.join(1, 1);  // it has room, and never looks
  for (int i = 0; i < 8; ++i) line(1).submit_tokens(10);
  run_until([&] { return arrived().size() == 4; });
  run_until([&] { return arrived().size() == 8; });
}

TEST_F(PortTest, AnEngineWithoutRoomLeavesRequestsToOneThatHasSome) {
  make_port();
  board_.join(1, 1);
  board_->tell_load(self_.life, {0, 0}, 0);
  for (int i = 0; i < 8; ++i) line(1).submit_tokens(10);
  // A time that does not show a mistake on a busy machine, and never shows one that is none.
  loop_.after(std::chrono::milliseconds(100), [this] { loop_.stop(); });
  loop_.run();
  EXPECT_THAT(arrived(), IsEmpty());
  board_->tell_load(self_.life, {64, 0}, 0);
  run_until([&] { return arrived().size() == 8; });
}

/// It is looked at again much earlier than what was left to others.
TEST_F(PortTest, ATurnThatWasLeftIsTakenBeforeAnybodyHelps) {
  make_port();
  const Member other = board_.join(1, 1);
  board_->tell_load(self_.life, {32, 0}, 0);  // the other has more room, and never looks
  const auto time_left = [&](std::uint64_t channel) {
    board_->hear(other.life);
    const std::size_t before = arrived().size();
    const auto start = std::chrono::steady_clock::now();
    line(channel).submit_tokens(10);
    run_until([&] { return arrived().size() > before; });
    return std::chrono::steady_clock::now() - start;
  };
  // Without the glance no try is so fast. A busy machine is slow in some.
  constexpr std::chrono::milliseconds kEarly{15};
  bool is_early = false;
  for (std::uint64_t channel = 1; channel <= 20 && !is_early; ++channel)
    if (board_->turn(self_.life, {channel, 0, 1}) == self_.life)
      is_early = time_left(channel) < kEarly;
  EXPECT_TRUE(is_early);
}

/// One glance is not all that a channel has in its life.
TEST_F(PortTest, EachTurnThatWasLeftIsTakenBeforeAnybodyHelps) {
  make_port();
  const Member other = board_.join(1, 1);
  constexpr std::chrono::milliseconds kEarly{15};
  constexpr int kInARow = 4;
  const auto are_early = [&](std::uint64_t channel) {
    for (int early = 0; early < kInARow;) {
      board_->hear(other.life);
      board_->tell_load(self_.life, {32, 0}, static_cast<std::uint32_t>(arrived().size()));
      const auto start = std::chrono::steady_clock::now();
      const RequestKey request{channel, line(channel).submit_tokens(10)};
      if (board_->turn(self_.life, {channel, request.slot, 1}) != self_.life) continue;
      run_until([&] { return has_arrived(request); });
      if (std::chrono::steady_clock::now() - start >= kEarly) return false;
      ++early;
    }
    return true;
  };
  std::uint64_t channel = 1;
  while (channel <= 20 && !are_early(channel)) ++channel;
  EXPECT_LE(channel, 20u);
}

/// But not every 2 ms.
TEST_F(PortTest, ATurnThatStaysLeftIsLookedAtOnceMoreAndThenNowAndThen) {
  make_port();
  const Member other = board_.join(1, 1);
  board_->tell_load(self_.life, {0, 0}, 0);
  std::uint64_t channel = 1;
  while (board_->turn(self_.life, {channel, 0, 1}) != self_.life) ++channel;
  line(channel).submit_tokens(10);
  constexpr int kTimes = 10;
  preads = 0;
  const auto start = std::chrono::steady_clock::now();
  int times = 0;
  const std::function<void()> hear = [&] {
    board_->hear(other.life);
    if (++times == kTimes) return loop_.stop();
    loop_.after(std::chrono::milliseconds(20), hear);
  };
  hear();
  loop_.run();
  const auto looks = (std::chrono::steady_clock::now() - start) / std::chrono::milliseconds(20);
  EXPECT_GE(preads, 2 * 3u);
  EXPECT_LE(preads, 2 * (static_cast<std::size_t>(looks) + 3));
}

/// Nobody rings for these again. Compared with the time that it computes: on a busy machine all is
/// slower.
TEST_F(PortTest, ADomainWithMuchThatIsLeftTakesLittleOfTheTime) {
  make_port();
  const Member other = board_.join(1, 1, {1000, 0});
  board_->tell_load(self_.life, {0, 0}, 0);
  for (std::uint64_t id = 1; id <= 200; ++id) {
    Line& hostile = line(id);
    for (std::size_t slot = 0; slot < kChannelSlots; ++slot)
      submit_raw(hostile.client.raw_requests().data(), slot, RequestBody{});
    ring_engine(hostile.engine_bell.get());
  }
  const auto share_during = [&](std::chrono::seconds time) {
    const auto start = std::chrono::steady_clock::now();
    const auto computed = thread_cpu_time();
    const std::function<void()> hear = [&] {
      board_->hear(other.life);
      if (std::chrono::steady_clock::now() - start > time) return loop_.stop();
      loop_.after(std::chrono::milliseconds(20), hear);
    };
    hear();
    loop_.run();
    return std::chrono::duration<double>(thread_cpu_time() - computed) /
           (std::chrono::steady_clock::now() - start);
  };
  // A tenth for what was rung for, a tenth for what nobody rings for, and the loop's own: on a slow
  // machine both are used up.
  EXPECT_LE(share_during(std::chrono::seconds(1)), 1. / 4);
  // By now each was looked at. Were looks free, they would take two thirds from here on; on a busy
  // machine still more than one.
  EXPECT_LE(share_during(std::chrono::seconds(2)), 1. / 3);
}

TEST_F(PortTest, ADeadEnginesRequestsAreTakenInAllChannels) {
  make_port();
  const Member other = board_.join(1, 1);
  std::vector<std::shared_ptr<EngineChannel>> others;
  for (const std::uint64_t id : {1, 2}) {
    Line& both = line(id);
    others.push_back(take_part(both, id, other));
    both.submit_tokens(10);
    for (int i = 0; i <= Board::kLooks; ++i) board_->look();  // as if the port had been stopped
    for (const TakenRequest& request : others.back()->take_submitted({}, 1 << 20, 64))
      ASSERT_TRUE(others.back()->sink(request)->start());
  }
  loop_.after(std::chrono::milliseconds(50), [this] { loop_.stop(); });
  loop_.run();
  EXPECT_THAT(arrived(), IsEmpty()) << "they run";
  board_.end(1);
  port_->look_at_all();
  run_until([&] { return arrived().size() == 2; });
}

TEST_F(PortTest, ALongTextThatAnotherEngineTookMeanwhileIsForgotten) {
  make_port();
  Line& both = line(1);
  const Member thief = board_.join(1, 1);
  const auto other = take_part(both, 1, thief);
  const std::size_t stolen = steal_long_texts(both, *other).size();
  both.submit_tokens(10);
  const RequestKey last{1, both.submit_text(200'000)};  // read after the others
  run_until([&] {
    board_->hear(thief.life);  // what a silent engine has taken is taken over
    return has_arrived(last);
  });
  EXPECT_GT(stolen, 0u);
  EXPECT_EQ(arrived().size() + stolen, 12u);
}

TEST_F(PortTest, AnAbortIsNotOfALongTextThatAnotherEngineTook) {
  make_port();
  Line& both = line(1);
  const auto other = take_part(both, 1, board_.join(1, 1));
  const std::vector<TakenRequest> stolen = steal_long_texts(both, *other);
  ASSERT_FALSE(stolen.empty());
  const std::uint32_t slot = stolen.back().slot;
  const auto sink = other->sink(stolen.back());
  ASSERT_TRUE(sink->start());
  sink->finished(FinishReason::length, {}, {}, 0);
  ASSERT_EQ(read(both, slot).reason, FinishReason::length);
  std::uint32_t next = both.submit_tokens(10);
  while (next != slot) next = both.submit_tokens(10);
  const auto has_come = [&] {
    const std::lock_guard lock(sent_.mutex);
    return std::any_of(sent_.submissions.begin(), sent_.submissions.end(), [&](const auto& sent) {
      return sent.key.slot == slot && sent.prompt.size() == 10;
    });
  };
  run_until(has_come);
  both.client.abort(slot);
  run_until([&] {
    const std::lock_guard lock(sent_.mutex);
    return std::count(sent_.aborted.begin(), sent_.aborted.end(), RequestKey{1, slot}) == 1;
  });
}

}  // namespace
}  // namespace kvhive::testing
