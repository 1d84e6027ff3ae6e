#include "actors/port.hpp"

#include <algorithm>

#include "base/check.hpp"
#include "base/log.hpp"
#include "base/logging/log_limit.hpp"
#include "base/stop_watch.hpp"
#include "config/domains/rule_text.hpp"
#include "hashing/cache_salt.hpp"

namespace kvhive {
namespace {

/// A longer text is tokenised in the other thread: on the event loop it would take milliseconds.
constexpr std::size_t kLongPrompt = std::size_t{16} << 10;
/// Taken out of a channel before others have their turn; a request costs its bytes and a fixed
/// amount (EngineChannel::kRequestCost), so these are 32 requests at most.
constexpr std::size_t kBytesPerTurn = std::size_t{32} << 10;
constexpr std::size_t kAbortsPerTurn = 32;
/// How long a request is left to the engine whose turn it is.
constexpr std::chrono::milliseconds kPatience{20};
/// Where so many channels are watched, each is looked at less often.
constexpr std::size_t kWatchedAtOnce = 200;
/// What comes to a channel whose requests are refused as overloaded is looked at so often.
constexpr std::chrono::milliseconds kOverloaded{20};
/// Until so long after the last of these refusals.
constexpr std::chrono::milliseconds kOverloadLasts{100};
/// What clients may do for nothing is counted in windows of this length.
constexpr std::chrono::milliseconds kWindow{100};
/// A channel that rings more often than this in a window is not listened to until the window ends.
/// An honest client rings once or twice for a request.
constexpr std::uint32_t kMostRings = 1000;
/// A domain that wastes more than this in a window has no turn until the window ends. A turn in
/// which there was nothing to do wastes 1, and so do four requests that were refused. So a domain
/// takes a few hundredths of the loop's time for nothing.
constexpr std::uint32_t kMostWaste = 200;
constexpr std::size_t kRefusalsOfWaste = 4;
/// All engines hear all rings. So a domain may have more turns in which there is something for
/// another engine.
constexpr std::uint32_t kMostForeign = 1000;
/// The loop's time that each of these may take in a window, whatever one of them costs: texts are
/// read before they are refused, and a channel may have many requests that wait for other engines.
/// At these the engine also looks when nobody rings (Domain::looks), for as long again.
constexpr std::chrono::microseconds kMostWastedTime{5'000}, kMostForeignTime{10'000};

/// Computes a request's seed from the daemon's seed and the prompt (FNV-1a), so that equal prompts
/// get equal seeds.
std::uint64_t mix(std::uint64_t seed, const Submission& submission) {
  std::uint64_t hash = 14695981039346656037ull ^ seed;
  if (submission.embedded) hash ^= submission.embedded->number();
  for (const TokenId token : submission.prompt)
    hash = (hash ^ static_cast<std::uint32_t>(token)) * 1099511628211ull;
  return hash;
}

/// All of the engine's channels have the same instants: it is woken once for all of them.
std::chrono::nanoseconds until_the_next(std::chrono::nanoseconds interval) {
  return interval - std::chrono::steady_clock::now().time_since_epoch() % interval;
}

/// Reads and digests it: megabytes, off the event loop.
Expected<Prompt> embedded_prompt(const EngineChannel& channel, const ChannelRange& rows,
                                 std::uint32_t width) {
  auto values = channel.read_rows(rows);
  if (!values) return forward_error(values);
  auto embedded = EmbeddedPrompt::make(width, std::move(*values));
  if (!embedded) return forward_error(embedded);
  std::vector<TokenId> tokens(embedded->rows(), kEmbedded);
  return Prompt{std::move(tokens), std::make_shared<EmbeddedPrompt>(std::move(*embedded))};
}

}  // namespace

Port::Port(EventLoop& loop, SchedulerHandle scheduler, const Tokenizer& tokenizer,
           PortLimits limits)
    : loop_(loop),
      scheduler_(std::move(scheduler)),
      tokenizer_(tokenizer),
      limits_(std::move(limits)),
      long_prompts_(loop, [this](Submission submission, auto prompt) {
        const auto sink = submission.sink;
        // The share may have changed while the prompt was read.
        if (const auto open = channels_.find(submission.key.channel); open != channels_.end())
          submission.share = open->second.share;
        auto ready = complete(std::move(submission), std::move(prompt));
        if (!ready) return sink->flush();
        sink->wait();
        limits_.self.board->take(limits_.self.life);
        caf::anon_send(scheduler_, SubmitBatch{{std::move(*ready)}});
      }) {}

Port::~Port() {
  for (auto& [id, open] : channels_) open.channel->on_change(nullptr);
}

void Port::open(std::shared_ptr<EngineChannel> channel, UniqueFd engine_bell, DomainId domain,
                const DomainShare& share) {
  const std::uint64_t id = channel->id();
  const auto [place, inserted] =
      channels_.emplace(id, OpenChannel{std::move(channel), std::move(engine_bell), domain, share});
  KV_CHECK(inserted, id);
  listen(id, place->second);
  place->second.channel->on_change([this, id] { loop_.post([this, id] { on_change(id); }); });
  // Requests may have been submitted before, perhaps to an engine that died.
  want_turn(id, place->second);
}

void Port::close(std::uint64_t channel) {
  const auto found = channels_.find(channel);
  if (found == channels_.end()) return;
  loop_.unwatch(found->second.bell.get());
  found->second.channel->on_change(nullptr);
  found->second.channel->close(std::move(found->second.bell));
  channels_.erase(found);
  long_prompts_.forget(channel);
  caf::anon_send(scheduler_, AbortBatch{{}, {channel}});
}

std::vector<std::uint64_t> Port::channels() const {
  std::vector<std::uint64_t> numbers;
  for (const auto& [id, open] : channels_) numbers.push_back(id);
  return numbers;
}

void Port::take_no_more(std::function<void()> when_done) {
  if (std::exchange(takes_no_more_, true)) return;
  limits_.self.board->leave(limits_.self.life);
  wait_until_empty(std::move(when_done));
}

/// What is being read comes to the scheduler later.
void Port::wait_until_empty(std::function<void()> when_done) {
  if (long_prompts_.is_empty())
    return caf::anon_send(scheduler_, TellWhenEmpty{[&loop = loop_, done = std::move(when_done)] {
                            loop.post(done);
                          }});
  loop_.after(kPatience, [this, done = std::move(when_done)] { wait_until_empty(done); });
}

void Port::set_share(DomainId domain, const DomainShare& share) {
  for (auto& [id, open] : channels_)
    if (open.domain == domain) open.share = share;
  caf::anon_send(scheduler_, NewLimits{.share = {{domain, share}}});
}

void Port::set_queue_limit(std::uint32_t tokens) {
  limits_.self.most_queued = tokens;
  for (auto& [id, open] : channels_) open.channel->set_queue_limit(tokens);
  caf::anon_send(scheduler_, NewLimits{.max_queued_tokens = tokens});
}

void Port::look_at_all() {
  for (auto& [id, open] : channels_) want_turn(id, open);
}

// -- rings ----------------------------------------------------------------------------------------

void Port::listen(std::uint64_t id, OpenChannel& open) {
  loop_.watch_edges(open.bell.get(), [this, id] { on_ring(id); });
}

void Port::on_ring(std::uint64_t id) {
  const auto found = channels_.find(id);
  if (found == channels_.end()) return;
  OpenChannel& open = found->second;
  if (open.rings.add(1) > kMostRings) return listen_later(id, open, open.rings.time_left());
  if (!std::exchange(open.is_heard_again, false)) open.was_rung = true;
  want_turn(id, open);
}

/// Calls it then, if the channel is still open.
void Port::later(std::uint64_t id, std::chrono::nanoseconds pause,
                 std::function<void(OpenChannel&)> then) {
  loop_.after(pause, [this, id, then = std::move(then)] {
    if (const auto found = channels_.find(id); found != channels_.end()) then(found->second);
  });
}

/// The bell is rung already when it is watched again, which counts as an edge: no ring is lost.
void Port::listen_later(std::uint64_t id, OpenChannel& open, std::chrono::nanoseconds pause) {
  if (std::exchange(open.is_unheard, true)) return;
  loop_.unwatch(open.bell.get());
  later(id, pause, [this, id](OpenChannel& still) {
    still.is_unheard = false;
    still.is_heard_again = true;
    listen(id, still);
  });
}

/// Requests of the channel have ended, for whose memory others wait; or one was lost.
void Port::on_change(std::uint64_t id) {
  if (const auto found = channels_.find(id); found != channels_.end()) want_turn(id, found->second);
}

/// There is a request that was left to another engine.
void Port::watch(std::uint64_t id, OpenChannel& open) {
  if (std::exchange(open.is_watched, true)) return;
  loop_.after(kPatience * (1 + watched_++ / kWatchedAtOnce), [this, id] {
    --watched_;
    look_at_others();
    const auto found = channels_.find(id);
    if (found == channels_.end()) return;
    found->second.is_watched = false;
    if (has_looked_enough(found->second)) return watch(id, found->second);
    found->second.helps = true;
    want_turn(id, found->second);
  });
}

/// Whether the engine has looked at the domain's channels by itself, in vain, for so long that it
/// goes on in the next window. Nobody rings for what waits: its cost is up to the client.
bool Port::has_looked_enough(const OpenChannel& open) {
  return domains_[open.domain].looks.add(0) > kMostForeignTime.count();
}

/// There is a request that was left in doubt. Rooms change within less than `kPatience` where many
/// requests are refused: each of two engines may have seen that the other has more.
void Port::glance(std::uint64_t id, OpenChannel& open) {
  if (std::exchange(open.is_glanced_at, true)) return;
  later(id, Board::kLeftFor, [this, id](OpenChannel& still) {
    still.is_glanced_at = false;
    if (!has_looked_enough(still)) want_turn(id, still);
  });
}

std::uint32_t Port::Count::add(std::uint32_t more) {
  const auto now = std::chrono::steady_clock::now();
  if (now - since_ > kWindow) {
    since_ = now;
    sum_ = 0;
  }
  return sum_ += more;
}

std::chrono::nanoseconds Port::Count::time_left() const {
  return since_ + kWindow - std::chrono::steady_clock::now();
}

static std::uint32_t us_of(std::chrono::nanoseconds time) {
  return static_cast<std::uint32_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(time).count());
}

bool Port::Cost::add(std::uint32_t turns, std::chrono::nanoseconds time, const Cost::Most& most) {
  const bool are_too_many = turns_.add(turns) > most.turns;
  return time_.add(us_of(time)) > most.time.count() || are_too_many;
}

std::chrono::nanoseconds Port::Cost::time_left() const {
  return std::max(turns_.time_left(), time_.time_left());
}

// -- turns ----------------------------------------------------------------------------------------

void Port::want_turn(std::uint64_t id, OpenChannel& open) {
  if (std::exchange(open.wants_turn, true)) return;
  Domain& domain = domains_[open.domain];
  domain.wanting.push_back(id);
  if (domain.wanting.size() == 1 && !domain.rests) turns_.push_back(open.domain);
  take_turn_soon();
}

void Port::take_turn_soon() {
  if (turns_.empty() || std::exchange(turn_comes_soon_, true)) return;
  loop_.after(std::chrono::nanoseconds(0), [this] {
    turn_comes_soon_ = false;
    take_turn();
    take_turn_soon();
  });
}

/// Drains the first channel of the first domain. Then that domain is the last one.
void Port::take_turn() {
  const DomainId id = turns_.front();
  turns_.pop_front();
  Domain& domain = domains_.at(id);
  const std::uint64_t channel = domain.wanting.front();
  const auto before = thread_cpu_time();
  const Drained drained = drain(channel);  // may queue the channel again, behind the others
  domain.wanting.pop_front();
  if (takes_too_much(domain, drained, thread_cpu_time() - before))
    rest(id, domain);
  else if (!domain.wanting.empty())
    turns_.push_back(id);
}

bool Port::takes_too_much(Domain& domain, const Drained& drained, std::chrono::nanoseconds time) {
  switch (drained.turn) {
    case Turn::foreign: return domain.foreign.add(1, time, {kMostForeign, kMostForeignTime});
    case Turn::wasted: return domain.waste.add(1, time, {kMostWaste, kMostWastedTime});
    case Turn::looked: domain.looks.add(us_of(time)); return false;
    default: break;
  }
  if (drained.in_vain == 0) return false;
  const auto waste = static_cast<std::uint32_t>(drained.refused / kRefusalsOfWaste);
  const auto part = time * drained.in_vain / (drained.in_vain + drained.served);
  return domain.waste.add(waste, part, {kMostWaste, kMostWastedTime});
}

void Port::rest(DomainId id, Domain& domain) {
  domain.rests = true;
  loop_.after(std::max(domain.waste.time_left(), domain.foreign.time_left()), [this, id] {
    Domain& rested = domains_.at(id);
    rested.rests = false;
    if (!rested.wanting.empty()) turns_.push_back(id);
    take_turn_soon();
  });
}

// -- requests -------------------------------------------------------------------------------------

Port::Drained Port::drain(std::uint64_t id) {
  const auto found = channels_.find(id);
  if (found == channels_.end()) return {};
  OpenChannel& open = found->second;
  open.wants_turn = false;
  say_that_it_hears();
  if (open.helps && !open.was_rung && has_looked_enough(open)) {  // many were due at once
    watch(id, open);
    return {Turn::looked};
  }
  // All engines have heard the ring of a channel that all have.
  if (open.was_rung && open.channel->is_shared()) look_at_others();
  const Taken taken = takes_no_more_ ? Taken{} : submit(open);
  const std::size_t aborted = abort(open);
  open.channel->ring();  // once for all that was refused or ended
  if (takes_no_more_) {
    if (open.channel->has_more_aborts()) want_turn(id, open);
    return {};
  }
  if (open.channel->has_more())
    want_turn(id, open);
  else
    open.helps = false;
  if (open.channel->watches()) watch(id, open);
  if (open.channel->doubts()) glance(id, open);
  if (is_still_overloaded(open)) listen_later(id, open, until_the_next(kOverloaded));
  const std::size_t refused = open.channel->refused();
  const bool was_rung = std::exchange(open.was_rung, false);
  if (taken.requests + aborted + refused != 0)
    return {Turn::useful, refused, refused + aborted + taken.questions,
            taken.requests - taken.questions};
  // A turn that the engine wanted for itself is not the client's waste.
  if (!was_rung) return {Turn::looked};
  return {open.channel->had_news() ? Turn::foreign : Turn::wasted};
}

/// Whether requests were refused lately, and more have come. Else the pause would outlive its
/// cause.
bool Port::is_still_overloaded(OpenChannel& open) {
  const auto now = std::chrono::steady_clock::now();
  const bool was_refused = open.channel->was_overloaded();
  if (was_refused) open.refused_at = now;
  const bool goes_on = open.is_overloaded && open.channel->had_news();
  return open.is_overloaded = (was_refused || goes_on) && now - open.refused_at < kOverloadLasts;
}

Port::Taken Port::submit(OpenChannel& open) {
  EngineChannel& channel = *open.channel;
  SubmitBatch batch;
  std::size_t taken_over = 0, questions = 0;
  const std::size_t help = open.helps ? limits_.self.board->load_of(limits_.self.life).room : 0;
  std::vector<TakenRequest> taken = channel.take_submitted(limits_.prompt, kBytesPerTurn, help);
  count_refused(channel.refused_at_once());
  for (TakenRequest& request : taken) {
    taken_over += request.journal.empty() ? 0 : 1;
    questions += request.params.only_asks ? 1 : 0;
    if (auto submission = tokenise(open, request))
      batch.submissions.push_back(std::move(*submission));
  }
  static LogLimit takeovers;  // an engine that dies may leave hundreds of channels
  if (taken_over != 0)
    if (const auto note = takeovers.admit())
      spdlog::info("channel {}: {} requests go on that another engine had begun{}", channel.id(),
                   taken_over, *note);
  const auto refused_or_read_later = taken.size() - batch.submissions.size();
  limits_.self.board->take_back(limits_.self.life,
                                static_cast<std::uint32_t>(refused_or_read_later));
  if (!batch.submissions.empty()) caf::anon_send(scheduler_, std::move(batch));
  return {taken.size(), questions};
}

/// Returns how many requests were aborted.
std::size_t Port::abort(OpenChannel& open) {
  AbortBatch aborts;
  const std::vector<std::uint32_t> wanted = open.channel->take_aborts(kAbortsPerTurn);
  for (const std::uint32_t slot : wanted) {
    const RequestKey request{open.channel->id(), slot};
    if (!long_prompts_.abort(request)) aborts.requests.push_back(request);
  }
  if (!aborts.requests.empty()) caf::anon_send(scheduler_, std::move(aborts));
  return wanted.size();
}

std::optional<Submission> Port::tokenise(OpenChannel& open, TakenRequest& request) {
  long_prompts_.forget({open.channel->id(), request.slot});  // another engine has ended it
  std::shared_ptr<OutputSink> sink = open.channel->sink(request);
  const std::size_t most_scored = request.most_scored();
  const ExtraKey salt = start_key(request.params.cache_salt, request.params.adapter);
  Submission submission{{open.channel->id(), request.slot},
                        {},
                        std::move(request.journal),
                        std::move(request.params),
                        std::move(sink),
                        open.domain,
                        request.earlier_admission,
                        std::move(request.held),
                        open.share,
                        request.is_new,
                        request.times,
                        salt};
  if (auto adapter = adapter_of(submission.params.adapter); adapter)
    submission.adapter = *adapter;
  else
    return complete(std::move(submission), forward_error(adapter));
  submission.most_scored = most_scored;
  if (request.prompt_kind == PromptKind::tokens)
    return complete(std::move(submission), Prompt{std::move(request.tokens)});
  if (request.prompt_kind == PromptKind::embeddings)
    return read_later(std::move(submission),
                      [channel = open.channel, width = limits_.prompt.embedding_width,
                       rows = request.rows] { return embedded_prompt(*channel, rows, width); });
  if (request.text.size() > kLongPrompt)
    return read_later(std::move(submission),
                      [this, text = std::move(request.text)] { return tokens_of(text); });
  const auto sink_of_text = submission.sink;
  if (!sink_of_text->read()) return std::nullopt;  // another engine was faster
  auto ready = complete(std::move(submission), tokens_of(request.text));
  if (ready) sink_of_text->wait();
  return ready;
}

std::nullopt_t Port::read_later(Submission submission, LongPrompts::Read read) {
  long_prompts_.add(std::move(submission), std::move(read));
  beat_while_reading();
  return std::nullopt;
}

Expected<Prompt> Port::tokens_of(const std::string& text) const {
  return tokenizer_.encode(text, AddSpecial::yes).map([](std::vector<TokenId>&& tokens) {
    return Prompt{std::move(tokens)};
  });
}

/// Otherwise others would take its long prompts for those of an engine that is stopped.
void Port::beat_while_reading() {
  if (long_prompts_.is_empty() || std::exchange(beats_, true)) return;
  loop_.after(kPatience / 2, [this] {
    beats_ = false;
    // A step that hangs must not seem to go on.
    if (!limits_.self.board->is_in_step(limits_.self.life))
      limits_.self.board->beat(limits_.self.life);
    beat_while_reading();
  });
}

/// At most once in a while: what counts is for how long another has done nothing.
void Port::look_at_others() {
  const auto now = std::chrono::steady_clock::now();
  if (now - looked_ < kPatience) return;
  looked_ = now;
  limits_.self.board->look();
  const bool hangs = limits_.self.board->hangs(limits_.self.life);
  if (hangs == std::exchange(hangs_, hangs)) return;
  if (hangs)
    spdlog::warn("a step has not ended for 5 s: other engines of its model take what waits here");
  else
    spdlog::info("the step that had not ended has ended");
}

/// Goes on as long as something waits, here or for others: then others look at this engine.
void Port::say_that_it_hears() {
  limits_.self.board->hear(limits_.self.life);
  if (std::exchange(hears_, true)) return;
  loop_.after(2 * kPatience, [this] {
    hears_ = false;
    const bool waits_here = limits_.self.board->load_of(limits_.self.life).queued != 0;
    if (watched_ != 0 || waits_here || !long_prompts_.is_empty()) say_that_it_hears();
  });
}

void Port::count_refused(std::size_t requests) const {
  if (limits_.counters != nullptr) bump((*limits_.counters)["refused_requests"], requests);
}

/// The number of an adapter by its name; -1 for none.
Expected<std::int32_t> Port::adapter_of(const std::string& name) const {
  if (name.empty()) return -1;
  const auto found = std::ranges::find(limits_.adapters, name);
  if (found != limits_.adapters.end())
    return static_cast<std::int32_t>(found - limits_.adapters.begin());
  std::string known = joined(limits_.adapters);
  const bool is_one_of_several = !limits_.model.empty();
  if (known.empty())
    known = is_one_of_several ? "--lora-modules names none for it"
                              : "it was started without --lora-modules";
  else
    known = "it has " + known;
  return failure(Errc::not_found,
                 "adapter '" + name +
                     "': " + (is_one_of_several ? "model '" + limits_.model + "'" : "the daemon") +
                     " has none of this name; " + known +
                     (is_one_of_several ? "; if it is another model's, connect to that one" : ""));
}

/// Puts the prompt into the submission; nothing, and the request is refused, if it is an error.
std::optional<Submission> Port::complete(Submission submission, Expected<Prompt> prompt) const {
  const RequestKey key = submission.key;
  if (!prompt) {
    spdlog::debug("request {}/{} refused: {}", key.channel, key.slot, prompt.error().text);
    const bool is_told = submission.sink->finished(FinishReason::error, prompt.error(), {}, 0);
    if (is_told && !submission.params.only_asks) count_refused(1);
    return std::nullopt;
  }
  submission.prompt = std::move(prompt->tokens);
  submission.prompt.shrink_to_fit();
  submission.embedded = std::move(prompt->embedded);
  submission.held->settle(
      submission.prompt.size(),
      std::min<std::size_t>(submission.params.max_tokens, limits_.prompt.tokens),
      submission.params.rules, submission.embedded ? submission.embedded->bytes() : 0);
  if (limits_.seed != 0 && !submission.params.has_seed)
    submission.params.sampling.seed = mix(limits_.seed, submission);
  spdlog::debug("request {}/{} accepted: {} prompt tokens, {} tokens generated before", key.channel,
                key.slot, submission.prompt.size(), submission.journal.size());
  return submission;
}

}  // namespace kvhive
