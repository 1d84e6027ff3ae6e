#include "actors/port.hpp"

#include <sys/epoll.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "actors/channel/doorbell.hpp"
#include "config/check.hpp"

namespace kvhive {
namespace {

/// A seed that depends on the daemon's and on the prompt, and on nothing else (FNV-1a).
std::uint64_t mix(std::uint64_t seed, const std::vector<TokenId>& prompt) {
  std::uint64_t hash = 14695981039346656037ull ^ seed;
  for (const TokenId token : prompt)
    hash = (hash ^ static_cast<std::uint32_t>(token)) * 1099511628211ull;
  return hash;
}

}  // namespace

Port::Port(SchedulerHandle scheduler, const Tokenizer& tokenizer, const PortLimits& limits)
    : scheduler_(std::move(scheduler)),
      tokenizer_(tokenizer),
      limits_(limits),
      epoll_(epoll_create1(EPOLL_CLOEXEC)) {
  KV_CHECK(epoll_, errno);
}

void Port::watch(int fd, std::function<void()> on_ready) {
  watched_[fd] = std::move(on_ready);
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  KV_CHECK(epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0, fd, errno);
}

void Port::unwatch(int fd) {
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  watched_.erase(fd);
}

void Port::open(std::shared_ptr<EngineChannel> channel, UniqueFd doorbell) {
  const std::uint64_t id = channel->id();
  const int fd = doorbell.get();
  const auto [place, inserted] =
      channels_.emplace(id, OpenChannel{std::move(channel), std::move(doorbell)});
  KV_CHECK(inserted, id);
  watch(fd, [this, id] {
    if (const auto open = channels_.find(id); open != channels_.end()) drain(open->second);
  });
  drain(place->second);  // what was submitted before, perhaps to an engine that died
}

void Port::close(std::uint64_t channel) {
  const auto found = channels_.find(channel);
  if (found == channels_.end()) return;
  unwatch(found->second.doorbell.get());
  channels_.erase(found);
  caf::anon_send(scheduler_, AbortBatch{{}, {channel}});
}

void Port::run() {
  std::array<epoll_event, 64> events;
  while (is_running_) {
    const int count = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), -1);
    KV_CHECK(count >= 0 || errno == EINTR, errno);
    for (int i = 0; i < count && is_running_; ++i) {
      const auto handler = watched_.find(events[static_cast<std::size_t>(i)].data.fd);
      if (handler != watched_.end())
        std::function<void()>(handler->second)();  // a copy: it may be removed meanwhile
    }
  }
}

void Port::drain(OpenChannel& open) {
  if (!answer_doorbell(open.doorbell.get()))
    unwatch(open.doorbell.get());  // its end is shut: level-triggered for ever

  EngineChannel& channel = *open.channel;
  SubmitBatch batch;
  for (TakenRequest& request : channel.take_submitted()) {
    if (auto submission = tokenise(channel, request))
      batch.submissions.push_back(std::move(*submission));
    else
      channel.refuse(request.slot, submission.error());
  }
  if (!batch.submissions.empty()) caf::anon_send(scheduler_, std::move(batch));

  AbortBatch aborts;
  for (const std::uint32_t slot : channel.take_aborts())
    aborts.requests.push_back({channel.id(), slot});
  if (!aborts.requests.empty()) caf::anon_send(scheduler_, std::move(aborts));
}

Expected<Submission> Port::tokenise(EngineChannel& channel, TakenRequest& request) const {
  std::shared_ptr<OutputSink> sink = channel.sink(request);
  Submission submission{{channel.id(), request.slot},
                        std::move(request.tokens),
                        std::move(request.journal),
                        std::move(request.params),
                        std::move(sink)};
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
