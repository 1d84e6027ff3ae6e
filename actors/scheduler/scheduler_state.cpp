#include "actors/scheduler/scheduler_state.hpp"

#include <algorithm>
#include <array>
#include <tuple>

#include "base/check.hpp"
#include "base/log.hpp"
#include "models/sampling/logits_processor.hpp"
#include "models/text/spellings.hpp"

namespace kvhive {

const char* remedy_for(LengthBound bound) {
  switch (bound) {
    case LengthBound::option:
      return "shorten it, or start the daemon with a higher --max-model-len (or, of several "
             "models, this one's in --model-options)";
    case LengthBound::model: return "shorten it: that is all the model has positions for";
    case LengthBound::pool: break;
  }
  return "shorten it, or give the pool more memory (--kv-cache-memory-bytes)";
}

namespace {

bool contains(const std::vector<TokenId>& tokens, TokenId token) {
  return std::find(tokens.begin(), tokens.end(), token) != tokens.end();
}

/// The prompt's, unless it is given as embeddings.
std::span<const TokenId> given_tokens(const Submission& submission) {
  return submission.embedded ? std::span<const TokenId>() : submission.prompt;
}

}  // namespace

// -- requests come in -----------------------------------------------------------------------------

void SchedulerState::submit(Submission&& submission) {
  ++submitted_;
  waiting_.set_share(submission.domain, submission.share);
  if (auto valid = check(submission); !valid) return refuse(submission, valid.error());
  if (submission.params.only_asks) return ask(std::move(submission));
  if (auto room = check_queue(submission); !room) return refuse(submission, room.error());
  auto logits = processor_of(submission);
  if (!logits) return refuse(submission, logits.error());
  if (!submission.journal.empty() && !submission.sink->read()) return;  // another engine has it
  const SeqId seq{next_seq_++};
  Request request{
      submission.key,
      seq.value,
      static_cast<std::uint32_t>(submission.prompt.size()),
      std::move(submission.prompt),
      submission.params,
      std::move(submission.sink),
      submission.domain,
      OutputText(config_.tokenizer, {submission.params.stop, submission.params.include_stop,
                                     submission.params.rules.min_tokens}),
      {},
      false,
      false,
      false};
  // Grows once at most, and not to twice what the request may need.
  request.tokens.reserve(std::min<std::size_t>(
      config_.max_model_len, std::size_t{request.prompt_tokens} + request.params.max_tokens));
  if (submission.earlier_admission) {
    // These numbers come from a slot that the client can write to. A wrong number harms only that
    // client. More cached tokens than the prompt has would confuse its reader, so they are limited.
    request.stats = *submission.earlier_admission;
    request.stats.cached_tokens = std::min(request.stats.cached_tokens, request.prompt_tokens);
    request.is_admitted = true;
  }
  request.stats.prompt_tokens = request.prompt_tokens;
  request.times = submission.times;
  request.salt = submission.salt;
  request.adapter = submission.adapter;
  request.embedded = submission.embedded;
  request.logits = std::move(*logits);  // has the rules' lists
  request.params.rules = {.min_tokens = request.params.rules.min_tokens};
  // A request that another engine has taken meanwhile, of which this engine does not know yet: its
  // client may have submitted the next one in the same slot.
  if (const auto lost = by_key_.find(request.key); lost != by_key_.end()) give_up(lost->second);
  by_key_.insert_or_assign(request.key, seq);
  requests_.emplace(seq, std::move(request));
  if (submission.journal.empty()) return enqueue(seq);
  journals_.push_back({seq, std::move(submission.journal)});
  if (journals_.size() == 1) replay_some();
}

void SchedulerState::refuse(const Submission& submission, const Error& error) {
  flush_later(submission.sink);
  if (!submission.sink->finished(FinishReason::error, error, {}, 0)) return;
  if (error.code == Errc::overloaded)
    meter_.overloaded();
  else
    meter_.finished(FinishReason::error, {}, {}, 0);
}

/// From now on the question is this engine's. If that dies, another one answers it.
void SchedulerState::ask(Submission&& submission) {
  if (!submission.sink->read()) return;  // another engine has it
  questions_.add(SeqId{next_seq_++}, std::move(submission));
}

/// Nobody finds room now whose request would be refused because too much waits.
void SchedulerState::answer(const Answers& answers) {
  for (const Answer& answer : answers.given) {
    const Submission asked = questions_.take(answer.seq);
    flush_later(asked.sink);
    const RequestStats stats{static_cast<std::uint32_t>(asked.prompt.size()),
                             answer.room ? answer.room->cached_tokens : 0, 0};
    if (!answer.room) {
      asked.sink->finished(FinishReason::error, answer.room.error(), stats, 0);
      continue;
    }
    RoomStatus room = *answer.room;
    if (!check_queue(asked)) room.status = AllocStatus::later;
    asked.sink->room(room);
    asked.sink->finished(FinishReason::room, {}, stats, 0);
  }
  flush();
}

Expected<void> SchedulerState::check(const Submission& submission) const {
  const std::size_t length = submission.prompt.size();
  if (length == 0)
    return failure(Errc::bad_argument, "the prompt is empty; give at least one token");
  if (length >= config_.max_model_len)
    return failure(Errc::never_fits,
                   "the prompt has " + std::to_string(length) + " tokens; a request may have " +
                       std::to_string(config_.max_model_len) +
                       ", at least one of output included; " + remedy_for(config_.length_bound));
  for (const auto tokens : {given_tokens(submission), std::span(submission.journal)})
    if (auto known = check_vocabulary(tokens, config_.vocab_size); !known) return known;
  if (length > submission.most_scored)
    return failure(Errc::bad_argument, "the prompt has " + std::to_string(length) +
                                           " tokens, and its log-probabilities have room for " +
                                           std::to_string(submission.most_scored) +
                                           "; give it as tokens");
  return {};
}

/// \param submission  checked
Expected<std::shared_ptr<const LogitsProcessor>> SchedulerState::processor_of(
    const Submission& submission) const {
  const GenerationParams& params = submission.params;
  std::vector<TokenId> ends = config_.eos_token_ids;
  ends.insert(ends.end(), params.stop_token_ids.begin(), params.stop_token_ids.end());
  std::vector<std::vector<TokenId>> bad_words;
  if (!params.rules.bad_words.empty() && config_.tokenizer != nullptr) {
    auto spelled = spellings(*config_.tokenizer, params.rules.bad_words);
    if (!spelled) return failure(spelled.error().code, "bad_words: " + spelled.error().text);
    bad_words = std::move(*spelled);
  }
  return LogitsProcessor::make(params.rules, std::move(bad_words), given_tokens(submission),
                               std::move(ends), config_.vocab_size);
}

/// A full queue still takes what is within the domain's part of it, or who submits most would have
/// most of it, and of the engine. A domain may always have one request that waits, so that no
/// limit is too low for a prompt. What an engine had accepted stays accepted.
Expected<void> SchedulerState::check_queue(const Submission& submission) const {
  const std::size_t of_domain = waiting_.tokens_of(submission.domain);
  if (!submission.is_new || of_domain == 0) return {};
  const std::size_t more = submission.prompt.size(), of_all = waiting_.tokens();
  const std::uint32_t share = submission.share.max_queued_tokens, most = config_.max_queued_tokens;
  if (share != 0 && of_domain + more > share)
    return overloaded(submission.domain, "of this domain", share, "shares, max-queued-tokens");
  if (most == 0 || of_all + more <= most) return {};
  const double part = waiting_.part_of(submission.domain) * most;
  if (static_cast<double>(of_domain + more) <= part) return {};
  return overloaded(submission.domain, "of all", most, "max-queued-tokens");
}

/// When to come again follows from what waits for the domain itself, and its part of the engine:
/// what others have waiting is not told.
tl::unexpected<Error> SchedulerState::overloaded(DomainId domain, const std::string& whose,
                                                 std::uint32_t most, const char* option) const {
  const auto queued = static_cast<double>(waiting_.tokens_of(domain)) / waiting_.part_of(domain);
  const std::chrono::milliseconds wait = drain_rate_.time_for(static_cast<std::size_t>(queued));
  return tl::unexpected<Error>({Errc::overloaded,
                                "overloaded: the requests " + whose +
                                    " that wait in one engine may have " + std::to_string(most) +
                                    " tokens (" + option + "); try again in about " +
                                    std::to_string(wait.count()) + " ms",
                                wait});
}

void SchedulerState::replay_some() {
  std::size_t left = kReplayedAtOnce;
  while (left != 0 && !journals_.empty()) {
    Journal& journal = journals_.front();
    left -= replay(journal, left);
    if (requests_.count(journal.seq) != 0) {
      if (journal.replayed < journal.tokens.size()) break;
      requests_.at(journal.seq).sink->wait();
      enqueue(journal.seq);
    }
    journals_.pop_front();
  }
  flush();
}

/// Appends tokens that a dead engine had generated, and rebuilds their text. Returns how many.
std::size_t SchedulerState::replay(Journal& journal, std::size_t most_tokens) {
  std::size_t count = 0;
  for (; count < most_tokens && journal.replayed < journal.tokens.size(); ++count) {
    if (requests_.count(journal.seq) == 0) break;  // it has ended
    append(journal.seq, requests_.at(journal.seq), {journal.tokens[journal.replayed++], 0, {}});
  }
  return count;
}

WaitingQueue::Entry SchedulerState::entry_of(SeqId seq, const Request& request) {
  return {seq, request.domain, request.params.priority, request.arrival, request.tokens.size()};
}

void SchedulerState::enqueue(SeqId seq) {
  Request& request = requests_.at(seq);
  request.place = waiting_.add(entry_of(seq, request));
}

void SchedulerState::leave_queue(SeqId seq, Request& request) {
  if (const auto place = std::exchange(request.place, std::nullopt))
    waiting_.remove(entry_of(seq, request), *place);
}

void SchedulerState::give_up(SeqId seq) {
  if (!std::exchange(requests_.at(seq).is_unwanted, true)) unwanted_.push_back(seq);
}

void SchedulerState::abort(const AbortBatch& batch) {
  for (const RequestKey& key : batch.requests)
    if (const auto found = by_key_.find(key); found != by_key_.end()) give_up(found->second);
  for (const std::uint64_t channel : batch.channels) {
    auto found = by_key_.lower_bound({channel, 0});
    for (; found != by_key_.end() && found->first.channel == channel; ++found)
      give_up(found->second);
  }
  if (step_is_out_) return;
  drop_unwanted();
  flush();
}

void SchedulerState::drop_unwanted() {
  for (const SeqId seq : std::exchange(unwanted_, {}))
    if (requests_.count(seq) != 0) finish(seq, FinishReason::abort);
}

// -- steps go out, results come back --------------------------------------------------------------

std::optional<StepRequest> SchedulerState::next_step() {
  KV_CHECK(!step_is_out_);
  if (running_.empty() && waiting_.is_empty() && ended_.empty() &&
      !std::exchange(looks_after_tails_, false))
    return std::nullopt;
  StepRequest step;
  step.step = next_step_++;
  step.ended = std::exchange(ended_, {});
  step.running = running_;
  step.drafts = guess();
  step.victims = victims();
  step.token_budget = config_.max_num_batched_tokens;
  step.waiting_in_all = static_cast<std::uint32_t>(waiting_.size());
  step.waiting = waiting_.first(waits_for_others_ + config_.max_num_seqs -
                                std::min<std::size_t>(running_.size(), config_.max_num_seqs));
  for (const SeqId seq : step.waiting) {
    Request& request = requests_.at(seq);
    if (std::exchange(request.is_known, true)) continue;
    step.added.push_back({seq, request.tokens, request.params.sampling, request.params.logprobs,
                          request.domain, request.is_admitted, request.sink, request.salt,
                          request.adapter});
    // It had computed all but its newest token. Of a prompt without a token nobody knows how much.
    NewSequence& added = step.added.back();
    if (request.generated() != 0)
      added.computed_before = static_cast<std::uint32_t>(request.tokens.size()) - 1;
    added.logits = request.logits;
    added.embedded = request.embedded;
    added.will_be_forked = request.params.will_be_forked;
    added.prompt_tokens = request.prompt_tokens;
    added.most_tokens = static_cast<std::uint32_t>(std::min<std::uint64_t>(
        std::uint64_t{request.prompt_tokens} + request.params.max_tokens, config_.max_model_len));
    if (!request.params.prompt_logprobs) continue;
    added.prompt_logprobs = *request.params.prompt_logprobs;
    // An engine scores the whole prompt before it writes the first token.
    added.scored_tokens = request.generated() == 0 ? request.prompt_tokens : 0;
    added.reads_cache = added.scored_tokens == 0;
  }
  step_is_out_ = true;
  step_began_ = meter_.now();
  tell_load();
  return step;
}

/// For requests of which all but the newest token is computed. No guess goes behind the last token
/// that the request may have.
std::vector<Drafts> SchedulerState::guess() {
  std::vector<Drafts> drafts;
  for (const SeqId seq : std::exchange(sampled_, {})) {
    const auto found = requests_.find(seq);
    if (found == requests_.end() || found->second.place) continue;
    Request& request = found->second;
    const std::size_t left = std::min<std::size_t>(request.params.max_tokens - request.generated(),
                                                   config_.max_model_len - request.tokens.size());
    const std::size_t most = std::min<std::size_t>(left - 1, config_.lookup.drafts);
    const auto guessed =
        look_up(request.tokens, config_.lookup,
                guess_policy_.worth(request.hit_rate.value(), running_.size(), most));
    request.guessed = guessed.size();
    if (guessed.empty())
      request.hit_rate.rest();
    else
      drafts.push_back({seq, {guessed.begin(), guessed.end()}});
  }
  return drafts;
}

/// Of the tokens that a step gives a request, all but one were guesses. Steps that also compute
/// parts of prompts say nothing about what a guess costs: those rows are not sampled.
void SchedulerState::learn_from_guesses(const StepDone& done) {
  std::size_t rows = 0;
  for (auto first = done.sampled.begin(); first != done.sampled.end();) {
    const auto behind = std::find_if(first, done.sampled.end(),
                                     [&](const auto& each) { return each.seq != first->seq; });
    if (const auto found = requests_.find(first->seq); found != requests_.end()) {
      Request& request = found->second;
      rows += 1 + request.guessed;
      request.hit_rate.learn(std::exchange(request.guessed, 0),
                             static_cast<std::size_t>(behind - first) - 1);
      sampled_.push_back(first->seq);
    }
    first = behind;
  }
  if (rows == done.outcome.scheduled_tokens) guess_policy_.learn(rows, done.times.computing);
}

/// The running requests in the order in which to preempt them: the last admitted first, or with the
/// priority policy the least important first, of the domain that has been served most.
std::vector<SeqId> SchedulerState::victims() const {
  std::vector<SeqId> victims(running_.rbegin(), running_.rend());
  if (config_.policy != SchedulingPolicy::priority) return victims;
  const auto rank = [this](SeqId seq) {
    const Request& request = requests_.at(seq);
    return std::tuple(waiting_.served(request.domain), request.domain,
                      WaitingQueue::place_by_priority(entry_of(seq, request)));
  };
  std::stable_sort(victims.begin(), victims.end(),
                   [&](SeqId a, SeqId b) { return rank(b) < rank(a); });
  return victims;
}

void SchedulerState::complete(const StepDone& done) {
  step_is_out_ = false;
  const std::uint64_t now = meter_.now();
  waits_for_others_ = done.outcome.waits_for_others;
  keeps_tails_ = done.outcome.keeps_tails;
  for (const Admission& admission : done.outcome.admitted) admit(admission);
  for (const SeqId seq : done.outcome.preempted) preempt(seq);
  for (const SeqId seq : done.outcome.lost) forget(seq);
  waiting_.set_at_maximum(done.outcome.at_maximum);
  for (const Rejection& rejection : done.outcome.rejected)
    finish(rejection.seq, FinishReason::error, rejection.error);
  for (const PromptScores& scores : done.scored)
    if (const auto scored = requests_.find(scores.seq); scored != requests_.end())
      scored->second.sink->prompt(scores.first, scores.tokens);
  sampled_order_.begin();
  for (const SampledToken& sampled : done.sampled) take(sampled, now);
  if (config_.lookup.drafts != 0) learn_from_guesses(done);
  drop_unwanted();
  is_starved_ =
      done.outcome.scheduled_tokens == 0 && done.outcome.preempted.empty() && !waiting_.is_empty();
  drain_rate_.add_step(done.times.copying + done.times.computing,
                       std::exchange(admitted_tokens_, 0));
  flush();
}

void SchedulerState::set_limits(const NewLimits& limits) {
  if (limits.max_queued_tokens) config_.max_queued_tokens = *limits.max_queued_tokens;
  if (limits.share) waiting_.set_share(limits.share->first, limits.share->second);
}

void SchedulerState::flush() {
  for (OutputSink* const sink : to_flush_) sink->flush();
  to_flush_.clear();
  kept_.clear();
  tell_load();
}

void SchedulerState::flush_later(std::shared_ptr<OutputSink> sink) {
  to_flush_.push_back(sink.get());
  kept_.push_back(std::move(sink));
}

void SchedulerState::tell_load() {
  if (!config_.tell_load) return;
  const std::size_t requests = running_.size() + waiting_.size() + journals_.size() -
                               std::min(waits_for_others_, waiting_.size());
  const auto room = config_.max_num_seqs - std::min<std::size_t>(requests, config_.max_num_seqs);
  config_.tell_load(
      {static_cast<std::uint32_t>(room), static_cast<std::uint32_t>(waiting_.tokens())}, submitted_,
      step_is_out_);
}

void SchedulerState::admit(const Admission& admission) {
  Request& request = requests_.at(admission.seq);
  const std::size_t tokens = request.tokens.size();
  waiting_.begins(request.domain);
  leave_queue(admission.seq, request);
  running_.push_back(admission.seq);
  admitted_tokens_ += tokens;
  waiting_.serve(request.domain, tokens - std::min<std::size_t>(admission.cached_tokens, tokens));
  if (request.params.prompt_logprobs && request.generated() == 0)
    request.sink->prompt(0, std::array{PromptToken{request.tokens.front(), 0, 0, {}}});
  if (std::exchange(request.is_admitted, true)) return;
  request.stats.cached_tokens = std::min(admission.cached_tokens, request.prompt_tokens);
  request.times.admitted = step_began_;
  request.sink->note(request.times);
  request.sink->admitted(request.stats);
  meter_.admitted(request.times);
  to_flush_.push_back(request.sink.get());
}

void SchedulerState::preempt(SeqId seq) {
  running_.erase(std::find(running_.begin(), running_.end(), seq));
  Request& request = requests_.at(seq);
  ++request.stats.preemptions;
  request.sink->preempted();
  request.place = waiting_.add_preempted(entry_of(seq, request));
  waiting_.ends(request.domain);
}

/// The step has sampled a token, perhaps one of several of its request. What comes behind the
/// request's last token is dropped.
void SchedulerState::take(const SampledToken& sampled, std::uint64_t now) {
  Request* const found = sampled_order_.find(requests_, sampled.seq);
  if (found == nullptr) return;
  Request& request = *found;
  waiting_.serve(request.domain, 1);
  if (request.is_unwanted) return;
  const std::uint64_t before = std::exchange(request.last_token, now);
  const bool is_first = request.generated() == 0;
  if (is_first) {
    request.times.first_token = now;
    request.sink->note(request.times);
  }
  if (is_first)
    meter_.first_token(request.times);
  else if (before != 0 && before != now)
    meter_.next_token(now - before);
  append(sampled.seq, request, sampled.token);  // may end the request
}

/// Appends a token to the request and gives it to the client.
void SchedulerState::append(SeqId seq, Request& request, const GeneratedToken& token) {
  request.tokens.push_back(token.token);
  OutputText::Piece piece = request.text.push(token.token);
  const FinishReason reason = reason_to_end(request, token.token, piece.stopped);
  if (reason != FinishReason::none && !piece.stopped) piece.text += request.text.finish();
  request.sink->token(token, piece.text);
  to_flush_.push_back(request.sink.get());
  if (reason != FinishReason::none) finish(seq, reason);
}

FinishReason SchedulerState::reason_to_end(const Request& request, TokenId token,
                                           bool stop_string) const {
  const bool is_eos = !request.params.ignore_eos && contains(config_.eos_token_ids, token);
  const bool is_end = is_eos || contains(request.params.stop_token_ids, token);
  if (stop_string || (is_end && request.generated() >= request.params.rules.min_tokens))
    return FinishReason::stop;
  const bool is_full = request.generated() >= request.params.max_tokens ||
                       request.tokens.size() >= config_.max_model_len;
  return is_full ? FinishReason::length : FinishReason::none;
}

void SchedulerState::finish(SeqId seq, FinishReason reason, const Error& error) {
  const auto found = requests_.find(seq);
  Request& request = found->second;
  spdlog::debug("request {}/{} ended: {}, {} tokens generated", request.key.channel,
                request.key.slot, to_string(reason), request.generated());
  if (request.sink->finished(reason, error, request.stats, request.text.bytes()))
    meter_.finished(reason, request.times, request.stats, request.generated());
  to_flush_.push_back(request.sink.get());
  forget(seq);
}

/// The request has ended, or another engine has it.
void SchedulerState::forget(SeqId seq) {
  const auto found = requests_.find(seq);
  Request& request = found->second;
  leave_queue(seq, request);
  if (request.is_known) {  // others do not run
    if (std::erase(running_, seq) != 0) waiting_.ends(request.domain);
    ended_.push_back(seq);
  }
  if (const auto newest = by_key_.find(request.key); newest->second == seq) by_key_.erase(newest);
  kept_.push_back(std::move(request.sink));  // to_flush_ may have it
  sampled_order_.forget();
  requests_.erase(found);
}

}  // namespace kvhive
