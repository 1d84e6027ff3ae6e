#include "tests/crash/channel/channel_stage.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/check.hpp"
#include "ipc/channel_memory.hpp"

namespace kvhive::testing {
namespace {

UniqueFd copy_of(const UniqueFd& fd) { return UniqueFd(fcntl(fd.get(), F_DUPFD_CLOEXEC, 0)); }

ChannelMedium make_medium() {
  ChannelMedium medium;
  medium.memory = make_channel_memory(ChannelStage::kBytes).value();
  medium.mapped =
      MappedMemory::map(medium.memory.get(), ChannelStage::kBytes, Access::read_write, "channel")
          .value();
  medium.client_bell = make_client_bell().value();
  medium.engine_bell = make_engine_bell().value();
  return medium;
}

}  // namespace

ChannelStage::ChannelStage() : main_(make_medium()), copy_(make_medium()) {
  UniqueFd engine_bell = copy_of(main_.engine_bell);
  clients_engine_bell_ = engine_bell.get();
  client_ = std::make_unique<StoryClient>(
      ClientChannel::open(main_.memory, kBytes, std::move(engine_bell)).value(),
      main_.client_bell.client_end.get(), *status_);
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

void ChannelStage::replace_engine() {
  engine_.reset();
  engine_ends_.clear();
  engine_ = std::make_unique<StoryEngine>(
      EngineChannel::in_memory(1, ++engines_, client_->channel().raw(), direct_ring(engine_end())),
      client_->channel().raw(), main_.engine_bell.get(), *status_);
  write_serving_engine(main_.memory.get(), engines_);
}

std::vector<ChannelStage::Exchange> ChannelStage::exchanges() const {
  std::vector<Exchange> all{
      {copy_.engine_bell.get(), main_.engine_bell.get()},
      {copy_.engine_bell.get(), clients_engine_bell_},
      {copy_.client_bell.client_end.get(), main_.client_bell.client_end.get()},
      {copy_.client_bell.engine_end.get(), main_.client_bell.engine_end.get()},
      {copy_.memory.get(), main_.memory.get()}};
  for (const int end : engine_ends_) all.push_back({copy_.client_bell.engine_end.get(), end});
  return all;
}

void ChannelStage::move_to_copy() {
  const auto memory = client_->channel().raw();
  KV_CHECK(mmap(memory.data(), memory.size(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                copy_.memory.get(), 0) == memory.data());
  for (const auto& [theirs, ours] : exchanges()) KV_CHECK(dup2(theirs, ours) == ours, errno);
}

void ChannelStage::move_to_copy(const TracedChild& child) const {
  const auto memory = client_->channel().raw();
  const auto place = reinterpret_cast<unsigned long>(memory.data());
  const auto number_of = [](int value) { return static_cast<unsigned long>(value); };
  KV_CHECK(child.call(SYS_mmap, {place, memory.size(), PROT_READ | PROT_WRITE,
                                 MAP_SHARED | MAP_FIXED, number_of(copy_.memory.get()), 0}) ==
           static_cast<long>(place));
  for (const auto& [theirs, ours] : exchanges())
    KV_CHECK(child.call(SYS_dup2, {number_of(theirs), number_of(ours)}) == ours);
}

}  // namespace kvhive::testing
