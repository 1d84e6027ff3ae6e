#include "tools/keeper/channels/channel_maker.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <utility>

#include "ipc/channel/channel_memory.hpp"
#include "tools/keeper/channels/page_pins.hpp"
#include "tools/keeper/succession/strays.hpp"

namespace kvhive {
namespace {

/// What is allocated before another user has a turn: about 3 ms of work.
constexpr std::size_t kPiece = std::size_t{8} << 20;

}  // namespace

/// A channel's memory while it is made. The worker and the event loop share it; `is_wanted` is all
/// that both use at the same time.
struct ChannelMaker::Making {
  /// Allocates one more piece. True = done, with `memory` or `error`.
  bool allocate();
  Expected<void> pin_answers();

  uid_t user = 0;
  std::size_t bytes = 0;
  std::size_t allocated = 0;
  ChannelMemory memory;
  Error error;
  std::atomic<bool> is_wanted{true};
};

bool ChannelMaker::Making::allocate() {
  const auto failed = [this](const auto& result) {
    error = result.error();
    memory = {};  // freed before the quota is: nobody else has it
    allocated = 0;
    return true;
  };
  if (!is_wanted) return true;
  if (!memory.answers) {
    auto opened = open_memory(kAnswersName);
    if (!opened) return failed(opened);
    memory.answers = std::move(*opened);
  }
  const std::size_t end = std::min(bytes, allocated + kPiece);
  if (auto grown = allocate_memory(memory.answers, allocated, end, bytes, kAnswersName); !grown)
    return failed(grown);
  allocated = end;
  if (allocated < bytes) return false;
  if (auto written = write_channel_header(memory.answers, bytes); !written) return failed(written);
  if (auto pinned = pin_answers(); !pinned) return failed(pinned);
  if (auto sealed = seal_memory(memory.answers, kAnswersName); !sealed) return failed(sealed);
  auto requests = create_empty_memory(kRequestsName, bytes);
  if (!requests) return failed(requests);
  memory.requests = std::move(*requests);
  return true;
}

Expected<void> ChannelMaker::Making::pin_answers() {
  constexpr std::size_t kFiles = 2;  // the requests, too, later (request_pinner.hpp)
  auto pipes = make_pin_pipes(kFiles, bytes);
  if (!pipes) return forward_error(pipes);
  if ((errno = pin_pages(*pipes, memory.answers.get(), bytes)) != 0)
    return os_failure("pin a channel's memory");
  memory.pins = std::move(*pipes);
  return {};
}

void ChannelMaker::make(std::uint64_t channel, uid_t user, std::size_t bytes) {
  const auto making = std::make_shared<Making>();
  making->user = user;
  making->bytes = bytes;
  making_.emplace(channel, making);
  worker_.add(user, [this, channel, making] {
    if (!making->allocate()) return false;
    loop_.post([this, channel, making] { made(channel, making); });
    return true;
  });
}

void ChannelMaker::made(std::uint64_t channel, const std::shared_ptr<Making>& making) {
  making_.erase(channel);
  if (!making->is_wanted)
    return free(channel, making->user, std::move(making->memory), making->allocated);
  if (making->error.code == Errc::none) return events_.on_made(channel, std::move(making->memory));
  events_.on_made(channel, tl::unexpected(making->error));
  free(channel, making->user, std::move(making->memory), making->allocated);
}

bool ChannelMaker::cancel(std::uint64_t channel) {
  const auto found = making_.find(channel);
  if (found == making_.end()) return false;
  found->second->is_wanted = false;
  return true;
}

void ChannelMaker::free(std::uint64_t channel, uid_t user, ChannelMemory memory,
                        std::size_t bytes) {
  struct Freeing {
    ChannelMemory memory;
    std::size_t freed = 0;
  };
  worker_.add(user, [this, channel, user, bytes,
                     freeing = std::make_shared<Freeing>(Freeing{std::move(memory)})] {
    auto& [files, freed] = *freeing;
    const std::size_t end = std::min(bytes, freed + kPiece);
    if (files.answers && end > freed) free_memory(files.answers, freed, end);
    freed = end;
    if (freed < bytes) return false;
    close(channel, user, std::move(files));
    return true;
  });
}

void ChannelMaker::close(std::vector<UniqueFd> strays) {
  for (UniqueFd& fd : strays)
    closer_.add(0, [stray = std::make_shared<UniqueFd>(std::move(fd))] {
      close_stray(std::move(*stray));
      return true;
    });
}

/// If the client has left, this frees its requests, which may be a gigabyte.
void ChannelMaker::close(std::uint64_t channel, uid_t user, ChannelMemory memory) {
  closer_.add(user, [this, channel, files = std::make_shared<ChannelMemory>(std::move(memory))] {
    // The client's file last: should its close take for ever, nothing else is left open.
    { const ChannelMemory closed = std::move(*files); }
    loop_.post([this, channel] { events_.on_freed(channel); });
    return true;
  });
}

}  // namespace kvhive
