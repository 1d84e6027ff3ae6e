#include "actors/port.hpp"

#include "base/check.hpp"
#include "base/log.hpp"
#include "ipc/doorbell.hpp"

namespace kvhive {
namespace {

/// Computes a request's seed from the daemon's seed and the prompt (FNV-1a), so that equal prompts
/// get equal seeds.
std::uint64_t mix(std::uint64_t seed, const std::vector<TokenId>& prompt) {
  std::uint64_t hash = 14695981039346656037ull ^ seed;
  for (const TokenId token : prompt)
    hash = (hash ^ static_cast<std::uint32_t>(token)) * 1099511628211ull;
  return hash;
}

}  // namespace

Port::Port(EventLoop& loop, SchedulerHandle scheduler, const Tokenizer& tokenizer,
           const PortLimits& limits)
    : loop_(loop), scheduler_(std::move(scheduler)), tokenizer_(tokenizer), limits_(limits) {}

void Port::open(std::shared_ptr<EngineChannel> channel, UniqueFd doorbell, DomainId domain) {
  const std::uint64_t id = channel->id();
  const int fd = doorbell.get();
  const auto [place, inserted] =
      channels_.emplace(id, OpenChannel{std::move(channel), std::move(doorbell), domain});
  KV_CHECK(inserted, id);
  loop_.watch(fd, [this, id] {
    if (const auto open = channels_.find(id); open != channels_.end()) drain(open->second);
  });
  drain(place->second);  // requests that were submitted before, perhaps to an engine that died
}

void Port::close(std::uint64_t channel) {
  const auto found = channels_.find(channel);
  if (found == channels_.end()) return;
  loop_.unwatch(found->second.doorbell.get());
  channels_.erase(found);
  caf::anon_send(scheduler_, AbortBatch{{}, {channel}});
}

void Port::drain(OpenChannel& open) {
  if (!answer_doorbell(open.doorbell.get()))
    // The client has closed its end. The doorbell would stay readable for ever and wake the loop.
    loop_.unwatch(open.doorbell.get());

  EngineChannel& channel = *open.channel;
  SubmitBatch batch;
  std::size_t taken_over = 0;
  for (TakenRequest& request : channel.take_submitted()) {
    auto submission = tokenise(channel, request);
    if (!submission) {
      spdlog::debug("request {}/{} refused: {}", channel.id(), request.slot,
                    submission.error().text);
      channel.refuse(request.slot, submission.error());
      continue;
    }
    submission->domain = open.domain;
    taken_over += submission->journal.empty() ? 0 : 1;
    spdlog::debug("request {}/{} accepted: {} prompt tokens, {} tokens generated before",
                  channel.id(), request.slot, submission->prompt.size(),
                  submission->journal.size());
    batch.submissions.push_back(std::move(*submission));
  }
  if (taken_over != 0)
    spdlog::info("channel {}: {} requests go on that another engine had begun", channel.id(),
                 taken_over);
  if (!batch.submissions.empty()) caf::anon_send(scheduler_, std::move(batch));

  AbortBatch aborts;
  for (const std::uint32_t slot : channel.take_aborts())
    aborts.requests.push_back({channel.id(), slot});
  if (!aborts.requests.empty()) caf::anon_send(scheduler_, std::move(aborts));
}

Expected<Submission> Port::tokenise(EngineChannel& channel, TakenRequest& request) const {
  std::shared_ptr<OutputSink> sink = channel.sink(request);
  Submission submission{
      {channel.id(), request.slot}, std::move(request.tokens), std::move(request.journal),
      std::move(request.params),    std::move(sink),           {},
      request.earlier_admission};
  if (request.prompt_kind == PromptKind::text) {
    if (request.text.size() > limits_.most_prompt_bytes)
      return failure(Errc::never_fits,
                     "the prompt has " + std::to_string(request.text.size()) +
                         " bytes, which is more than " + std::to_string(limits_.most_prompt_bytes) +
                         ", the most that the model's longest sequence can stand for; shorten it");
    auto tokens = tokenizer_.encode(request.text, AddSpecial::yes);
    if (!tokens) return forward_error(tokens);
    submission.prompt = std::move(*tokens);
  }
  if (limits_.seed != 0 && !submission.params.has_seed)
    submission.params.sampling.seed = mix(limits_.seed, submission.prompt);
  return submission;
}

}  // namespace kvhive
