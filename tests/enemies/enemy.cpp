#include "tests/enemies/enemy.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "ipc/channel/doorbell.hpp"
#include "ipc/protocol.hpp"
#include "tests/enemies/grammar.hpp"

namespace kvhive::testing {
namespace {

constexpr std::size_t kMostHeldFds = 64, kMostHeldChannels = 12;
/// How long an enemy waits for the daemon.
constexpr int kPatienceMs = 2000;
/// On average an enemy rests as long between two draws from the grammar: eight enemies then make
/// some hundred attacks a second, and what is measured is their kind and not their number.
constexpr std::chrono::microseconds kRest{20'000};

/// Uses the processor and the kernel as an attacking process does, but nothing of the daemon's.
void compute(Enemy& enemy) {
  static std::vector<std::byte> memory(std::size_t{1} << 20);
  enemy.fill(std::span(memory).first(enemy.below(memory.size())));
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return;
  const UniqueFd one(ends[0]), other(ends[1]);
  for (int i = 0; i < 100; ++i) {
    (void)!write(one.get(), memory.data(), 4096);
    (void)!read(other.get(), memory.data(), 4096);
  }
}

void rest(Enemy& enemy) { std::this_thread::sleep_for(kRest * enemy.below(1000) / 500); }

}  // namespace

void SeizedChannel::ring() const { ring_engine(engine_bell); }

std::uint64_t Enemy::odd_number() {
  static constexpr std::uint64_t kOdd[] = {0,
                                           1,
                                           2,
                                           3,
                                           7,
                                           63,
                                           255,
                                           256,
                                           4095,
                                           4096,
                                           65'535,
                                           65'536,
                                           prompts_offset() - 1,
                                           prompts_offset(),
                                           kLeastChannelBytes - 1,
                                           kLeastChannelBytes,
                                           0x7fff'ffff,
                                           0x8000'0000,
                                           0xffff'ffff,
                                           0x1'0000'0000,
                                           0x7fff'ffff'ffff'ffff,
                                           0x8000'0000'0000'0000,
                                           ~0ull - 4095,
                                           ~0ull};
  switch (below(3)) {
    case 0: return bits();
    case 1: return below(1 << 20);
    default: return kOdd[below(std::size(kOdd))] + below(3) - 1;
  }
}

void Enemy::fill(std::span<std::byte> bytes) {
  for (std::size_t at = 0; at + 8 <= bytes.size(); at += 8) {
    const std::uint64_t word = bits();
    std::memcpy(bytes.data() + at, &word, 8);
  }
}

UniqueFd Enemy::connect() const {
  auto socket = connect_to_daemon(socket_path(), kPatienceMs);
  return socket ? std::move(*socket) : UniqueFd();
}

std::optional<SeizedChannel> Enemy::seize(std::size_t bytes,
                                          const std::function<void(int file)>& spoil) const {
  UniqueFd socket = connect();
  if (!socket) return std::nullopt;
  auto welcome = say_hello(socket.get(), ClientHello{bytes}, kPatienceMs);
  if (!welcome || welcome->fds.size() != 4) return std::nullopt;
  auto& fds = welcome->fds;
  UniqueFd requests = copy_of(fds[0]);
  if (spoil) spoil(requests.get());
  const int engine_bell = fds[2].get();
  auto channel = ClientChannel::open(std::move(fds[0]), fds[1], welcome->message.channel_bytes,
                                     std::move(fds[2]));
  if (!channel || !send_packet(socket.get(), RequestsSealed{})) return std::nullopt;
  return SeizedChannel{std::move(socket), std::move(requests), std::move(fds[1]),
                       std::move(fds[3]), engine_bell,         std::move(*channel)};
}

SeizedChannel* Enemy::some_channel() {
  if (channels_.empty() || (channels_.size() < kMostHeldChannels && chance(8))) {
    auto channel = seize(kLeastChannelBytes << below(3));
    if (channel) channels_.push_back(std::move(*channel));
  }
  return channels_.empty() ? nullptr : &channels_[below(channels_.size())];
}

void Enemy::hold(UniqueFd fd) {
  if (!fd) return;
  if (fds_.size() >= kMostHeldFds) fds_.erase(fds_.begin());
  fds_.push_back(std::move(fd));
}

void Enemy::hold(SeizedChannel channel) {
  if (channels_.size() >= kMostHeldChannels) channels_.erase(channels_.begin());
  channels_.push_back(std::move(channel));
}

void Enemy::drop_some() {
  std::erase_if(fds_, [&](const UniqueFd&) { return chance(2); });
  std::erase_if(channels_, [&](const SeizedChannel&) { return chance(2); });
}

void Enemy::drop_all() {
  fds_.clear();
  channels_.clear();
}

void live_as_enemy(Board& board, std::size_t number, std::uint64_t seed, const Targets& targets,
                   const Arms& arms) {
  Enemy enemy(board, number, seed, targets);
  Grammar grammar(enemy, arms);
  while (true) {
    if (enemy.is_calm()) {
      if (board.is_quiet[number] == 0) grammar.make_peace();
      board.is_quiet[number] = 1;
      compute(enemy);
    } else {
      board.is_quiet[number] = 0;
      grammar.play_one();
    }
    rest(enemy);
  }
}

}  // namespace kvhive::testing
