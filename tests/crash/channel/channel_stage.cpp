#include "tests/crash/channel/channel_stage.hpp"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/check.hpp"

namespace kvhive::testing {
namespace {

ChannelMedium make_medium() {
  ChannelMedium medium;
  medium.memory = make_channel_memory(ChannelStage::kBytes);
  const auto map = [](const UniqueFd& file) {
    return MappedMemory::map(file.get(), ChannelStage::kBytes, Access::read_write, "story").value();
  };
  medium.requests = map(medium.memory.requests);
  medium.answers = map(medium.memory.answers);
  medium.client_bell = make_client_bell().value();
  medium.engine_bell = make_engine_bell().value();
  return medium;
}

}  // namespace

ChannelStage::ChannelStage() : main_(make_medium()), copy_(make_medium()) {
  UniqueFd engine_bell = copy_of(main_.engine_bell);
  clients_engine_bell_ = engine_bell.get();
  UniqueFd requests = copy_of(main_.memory.requests);
  clients_requests_ = requests.get();
  client_ = std::make_unique<StoryClient>(
      ClientChannel::open(std::move(requests), main_.memory.answers, kBytes, std::move(engine_bell))
          .value(),
      main_.client_bell.client_end.get(), *status_);
  const std::span<std::byte> answers{main_.answers.data(), kBytes};
  helper_ = std::make_unique<StoryEngine>(
      EngineChannel::in_memory(1, board_.join_without_turns(kHelper, 1), copy_of_requests(),
                               answers, direct_ring(engine_end())),
      main_.requests.data(), main_.answers.data(), main_.engine_bell.get(), *status_);
  helpers_end_ = engine_ends_.back();
  helpers_requests_ = engines_requests_.back();
  replace_engine();
  client_->submit(2);
  client_->submit(3);
  engine_->take();
  for (int i = 0; i < 2; ++i) engine_->generate(0);
  engine_->ring();
  client_->wake();
  std::uint64_t rings;
  KV_CHECK(read(main_.engine_bell.get(), &rings, sizeof rings) == sizeof rings);
  status_->open = 2;
}

UniqueFd ChannelStage::engine_end() {
  UniqueFd end = copy_of(main_.client_bell.engine_end);
  engine_ends_.push_back(end.get());
  return end;
}

RequestFile ChannelStage::copy_of_requests() {
  UniqueFd file = copy_of(main_.memory.requests);
  engines_requests_.push_back(file.get());
  return RequestFile(std::move(file), kBytes);
}

void ChannelStage::replace_engine() {
  if (engine_) board_.end(1);
  engine_.reset();
  engine_ends_ = {helpers_end_};
  engines_requests_ = {helpers_requests_};
  const std::span<std::byte> answers{main_.answers.data(), kBytes};
  engine_ = std::make_unique<StoryEngine>(
      EngineChannel::in_memory(1, board_.join(++engines_), copy_of_requests(), answers,
                               direct_ring(engine_end())),
      main_.requests.data(), main_.answers.data(), main_.engine_bell.get(), *status_);
  write_serving_engines(main_.memory.answers, engines_, 1);
}

std::vector<ChannelStage::Exchange> ChannelStage::exchanges() const {
  std::vector<Exchange> all{
      {copy_.engine_bell.get(), main_.engine_bell.get()},
      {copy_.engine_bell.get(), clients_engine_bell_},
      {copy_.client_bell.client_end.get(), main_.client_bell.client_end.get()},
      {copy_.client_bell.engine_end.get(), main_.client_bell.engine_end.get()},
      {copy_.memory.requests.get(), main_.memory.requests.get()},
      {copy_.memory.answers.get(), main_.memory.answers.get()},
      {copy_.memory.requests.get(), clients_requests_}};
  for (const int end : engine_ends_) all.push_back({copy_.client_bell.engine_end.get(), end});
  for (const int file : engines_requests_) all.push_back({copy_.memory.requests.get(), file});
  return all;
}

std::vector<ChannelStage::Remapping> ChannelStage::remappings() const {
  constexpr int kBoth = PROT_READ | PROT_WRITE;
  const int requests = copy_.memory.requests.get(), answers = copy_.memory.answers.get();
  return {{client_->channel().raw_requests(), kBoth, requests},
          {client_->channel().raw_answers(), PROT_READ, answers},
          {{main_.requests.data(), kBytes}, kBoth, requests},
          {{main_.answers.data(), kBytes}, kBoth, answers}};
}

void ChannelStage::move_to_copy() {
  for (const auto& [ours, protection, theirs] : remappings())
    KV_CHECK(mmap(ours.data(), ours.size(), protection, MAP_SHARED | MAP_FIXED, theirs, 0) ==
             ours.data());
  for (const auto& [theirs, ours] : exchanges()) KV_CHECK(dup2(theirs, ours) == ours, errno);
}

void ChannelStage::move_to_copy(const TracedChild& child) const {
  const auto number_of = [](int value) { return static_cast<unsigned long>(value); };
  for (const auto& [ours, protection, theirs] : remappings()) {
    const auto place = reinterpret_cast<unsigned long>(ours.data());
    KV_CHECK(child.call(SYS_mmap, {place, ours.size(), number_of(protection),
                                   MAP_SHARED | MAP_FIXED, number_of(theirs), 0}) ==
             static_cast<long>(place));
  }
  for (const auto& [theirs, ours] : exchanges())
    KV_CHECK(child.call(SYS_dup2, {number_of(theirs), number_of(ours)}) == ours);
}

}  // namespace kvhive::testing
