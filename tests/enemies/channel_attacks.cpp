// Attacks with channels as such: too many, too large, damaged, rung without end, never read.

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/memory/memory_object.hpp"
#include "base/round_up.hpp"
#include "ipc/channel/doorbell.hpp"
#include "ipc/protocol.hpp"
#include "tests/enemies/attacks.hpp"
#include "tests/support/herd.hpp"

namespace kvhive::testing {
namespace {

constexpr int kCollapse = 25;  // MADV_COLLAPSE, Linux 6.1

/// Few requests are valid: for those the engine computes, which is a user's right and no attack.
/// The others name a token that does not exist, and the engine refuses them when it has read them.
ChannelRequest small_request(Enemy& enemy, std::uint32_t max_tokens) {
  ChannelRequest request;
  if (enemy.chance(16))
    request.prompt = "And it came to pass";
  else
    request.prompt_tokens = {-1};
  request.params.max_tokens = max_tokens;
  request.params.ignore_eos = true;
  return request;
}

void churn(Enemy& enemy) {
  for (std::uint64_t i = enemy.below(8) + 1; i > 0; --i) (void)enemy.seize();
}

/// Leaves while the channel is being made.
void ask_for_a_gigabyte_and_leave(Enemy& enemy) {
  UniqueFd socket = enemy.connect();
  (void)send_packet(socket.get(), ClientHello{kMostChannelBytes >> enemy.below(4)});
}

void ask_for_odd_sizes(Enemy& enemy) {
  const UniqueFd socket = enemy.connect();
  std::uint64_t bytes = enemy.odd_number();
  if (bytes > (std::uint64_t{64} << 20) && bytes <= kMostChannelBytes)
    bytes = kMostChannelBytes + 1;
  (void)send_packet(socket.get(),
                    ClientHello{bytes, static_cast<std::uint32_t>(enemy.odd_number())});
}

/// Waits at most a little for what it asked for, and hoards it.
void hoard(Enemy& enemy) {
  for (std::uint64_t i = enemy.below(4) + 1; i > 0; --i)
    if (auto channel = enemy.seize(kLeastChannelBytes << enemy.below(6)))
      enemy.hold(std::move(*channel));
}

void flood_the_bell(Enemy& enemy) {
  SeizedChannel* channel = enemy.some_channel();
  if (channel == nullptr) return;
  for (std::uint64_t i = enemy.below(5000); i > 0; --i) channel->ring();
}

/// Makes the engine's bell one that would block, and fills it up.
void block_the_bell(Enemy& enemy) {
  SeizedChannel* channel = enemy.some_channel();
  if (channel == nullptr) return;
  std::uint64_t count = 0;
  (void)!read(channel->engine_bell, &count, sizeof count);  // else the write below would wait
  fcntl(channel->engine_bell, F_SETFL, 0);
  const std::uint64_t nearly_full = ~0ull - 1;
  (void)!write(channel->engine_bell, &nearly_full, sizeof nearly_full);
  fcntl(channel->engine_bell, F_SETFL, O_NONBLOCK);
}

/// Makes its own end of the engine's rings useless, and leaves the rings unread.
void break_the_own_bell(Enemy& enemy) {
  SeizedChannel* channel = enemy.some_channel();
  if (channel == nullptr) return;
  const int nothing = 0;
  setsockopt(channel->client_bell.get(), SOL_SOCKET, SO_RCVBUF, &nothing, sizeof nothing);
  char letter = 'x';
  (void)send(channel->client_bell.get(), &letter, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (enemy.chance(2)) shutdown(channel->client_bell.get(), SHUT_RDWR);
  if (enemy.chance(2)) channel->client_bell = UniqueFd();
  (void)channel->channel.submit(small_request(enemy, 1));
}

/// Whoever rings this client, or closes its bell last, wakes ten thousand. The client makes the
/// engine ring for all its slots, and perhaps leaves.
void hang_a_herd_on_the_own_bell(Enemy& enemy) {
  auto channel = enemy.seize();
  if (!channel) return;
  const Herd herd(channel->client_bell.get(), 100, 100);
  const Herd other(channel->engine_bell, 10, 100);
  for (std::uint64_t i = enemy.below(4) + 1; i > 0; --i) {
    (void)channel->channel.submit(small_request(enemy, 8));
    for (std::size_t slot = 16; slot < kChannelSlots; ++slot) channel->submit(slot, RequestBody{});
    channel->ring();
    (void)answer_client_bell(channel->client_bell.get());
  }
  if (enemy.chance(2)) enemy.hold(std::move(*channel));
}

void damage_the_memory(Enemy& enemy) {
  SeizedChannel* channel = enemy.some_channel();
  if (channel == nullptr) return;
  const std::span<std::byte> bytes = channel->bytes();
  const auto size = static_cast<off_t>(bytes.size());
  const int fd = enemy.chance(8) ? channel->answers.get() : channel->requests.get();
  switch (enemy.below(6)) {
    case 0: return enemy.fill(bytes.first(prompts_offset()));
    case 1: (void)fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, size); return;
    case 2: (void)!ftruncate(fd, static_cast<off_t>(enemy.below(bytes.size()))); return;
    case 3: fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_FUTURE_WRITE); return;
    case 4: flock(fd, LOCK_EX | LOCK_NB); return;
    default: (void)!pwrite(fd, bytes.data(), bytes.size(), 0);  // locks the file meanwhile
  }
}

/// Writes its requests in large pieces and punches holes into them, which the kernel does under a
/// lock, until it must seal them.
void keep_the_file_busy(Enemy& enemy) {
  constexpr std::size_t kBytes = std::size_t{64} << 20;
  auto channel = enemy.seize(kBytes, [&](int file) {
    static std::vector<std::byte> data(kBytes / 2);
    for (std::uint64_t i = enemy.below(3) + 1; i > 0; --i) {
      (void)!pwrite(file, data.data(), data.size(), std::int64_t{1} << 20);
      (void)fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, off_t{kBytes});
    }
  });
  if (!channel) return;
  (void)channel->channel.submit(small_request(enemy, 1));
  if (enemy.chance(2)) enemy.hold(std::move(*channel));
}

/// The kernel locks the pages that it merges, the longer the more often they are mapped
/// (tools/keeper/channels/page_pins.hpp).
void have_pages_merged(Enemy& enemy) {
  constexpr std::size_t kBytes = std::size_t{8} << 20;
  const std::size_t room = (enemy.below(500) + 1) * 2 * kHugePage;
  void* const place = mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (place == MAP_FAILED) return;
  auto* const first =
      reinterpret_cast<std::byte*>(round_up(reinterpret_cast<std::size_t>(place), kHugePage));
  const auto merge = [&](int file) {
    for (std::byte* at = first; at + kHugePage <= static_cast<std::byte*>(place) + room;
         at += kHugePage)
      mmap(at, kHugePage, PROT_READ, MAP_SHARED | MAP_FIXED, file, 0);
    for (int i = 0; i < 3; ++i) madvise(first, kHugePage, kCollapse);
  };
  auto channel = enemy.seize(kBytes, [&](int file) {
    if (!enemy.chance(2)) return;
    (void)!fallocate(file, 0, 0, off_t{kBytes});
    merge(file);
  });
  if (channel) {
    (void)channel->channel.submit(small_request(enemy, 1));
    enemy.fill(channel->bytes().subspan(prompts_offset()));
    merge(enemy.chance(2) ? channel->requests.get() : channel->answers.get());
    (void)channel->channel.submit(small_request(enemy, 1));
  }
  munmap(place, room);
}

/// Says that its requests are sealed when they are not, or says it again and again.
void lie_about_the_seal(Enemy& enemy) {
  auto channel = enemy.chance(2) ? enemy.seize() : std::nullopt;
  const UniqueFd socket = channel ? std::move(channel->socket) : enemy.connect();
  if (!channel) (void)send_packet(socket.get(), ClientHello{kLeastChannelBytes});
  for (std::uint64_t i = enemy.below(3) + 1; i > 0; --i)
    (void)send_packet(socket.get(), RequestsSealed{});
}

void abort_at_odd_times(Enemy& enemy) {
  SeizedChannel* channel = enemy.some_channel();
  if (channel == nullptr) return;
  for (std::uint64_t i = enemy.below(4) + 1; i > 0; --i) {
    const auto slot = channel->channel.submit(small_request(enemy, 8));
    for (std::uint64_t wait = enemy.below(20'000); wait > 0; --wait)
      (void)answer_in(channel->channel.raw_answers().data(), 0).state.load();
    if (slot) channel->channel.abort(*slot);
  }
  for (std::uint64_t i = enemy.below(32); i > 0; --i) {
    RequestMark& mark = channel->mark(enemy.below(kChannelSlots));
    mark.aborted = mark.submitted;
  }
  channel->ring();
}

void never_read(Enemy& enemy) {
  auto channel = enemy.seize();
  if (!channel) return;
  for (std::uint64_t i = enemy.below(3) + 1; i > 0; --i)
    (void)channel->channel.submit(small_request(enemy, 4));
  enemy.hold(std::move(*channel));
}

/// The numbers of requests run ahead, back and in circles, and so do those to be aborted. The
/// requests are short: computing many tokens would be no attack.
void confuse_the_numbers(Enemy& enemy) {
  SeizedChannel* channel = enemy.some_channel();
  if (channel == nullptr) return;
  (void)channel->channel.submit(small_request(enemy, 2));
  for (std::size_t slot = 0; slot < 16; ++slot) {
    RequestMark& mark = channel->mark(slot);
    switch (enemy.below(4)) {
      case 0: mark.submitted = static_cast<std::uint32_t>(enemy.odd_number()); break;
      case 1: channel->body(slot).number = ++mark.submitted; break;
      case 2: mark.aborted = static_cast<std::uint32_t>(enemy.odd_number()); break;
      default: channel->body(slot).number = mark.submitted = 0;
    }
  }
  channel->ring();
}

constexpr Attack kAttacks[] = {
    {"channels come and go", "S2", churn},
    {"ask for a gigabyte and leave", "S9", ask_for_a_gigabyte_and_leave},
    {"ask for odd sizes", "S8", ask_for_odd_sizes},
    {"hoard channels", "S8", hoard},
    {"flood a bell", "S1", flood_the_bell},
    {"make the engine's bell block", "S1", block_the_bell},
    {"break the own bell", "S3", break_the_own_bell},
    {"hang a herd on the own bell", "S3", hang_a_herd_on_the_own_bell},
    {"damage a channel's memory", "S4", damage_the_memory},
    {"keep a channel's file busy", "S4", keep_the_file_busy},
    {"abort at odd times", "S7", abort_at_odd_times},
    {"never read the log", "S3", never_read},
    {"numbers in disorder", "S7", confuse_the_numbers},
    {"have pages merged", "S4", have_pages_merged},
    {"lie about the seal", "S4", lie_about_the_seal},
};

}  // namespace

std::span<const Attack> channel_attacks() { return kAttacks; }

}  // namespace kvhive::testing
