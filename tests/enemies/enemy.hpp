#pragma once
// A hostile process: what it holds, and its source of chance. Attacks (attacks.hpp) act through it.

#include <cstdint>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/unique_fd.hpp"
#include "ipc/channel/client_channel.hpp"
#include "tests/enemies/board.hpp"
#include "tests/support/channel_memory.hpp"

namespace kvhive::testing {

struct Arms;

/// The sockets of the daemons that are attacked in a storm and instead of one.
struct Targets {
  std::string daemon, decoy;
};

/// A channel as a hostile client has it: with everything that the daemon gave for it.
struct SeizedChannel {
  UniqueFd socket, requests, answers, client_bell;
  int engine_bell = -1;  ///< owned by `channel`
  ClientChannel channel;

  /// Of the requests.
  std::span<std::byte> bytes() const { return channel.raw_requests(); }
  RequestMark& mark(std::size_t slot) const { return mark_in(bytes().data(), slot); }
  RequestBody& body(std::size_t slot) const { return body_in(bytes().data(), slot); }
  void submit(std::size_t slot, const RequestBody& body) const {
    submit_raw(bytes().data(), slot, body);
  }
  void ring() const;
};

class Enemy {
 public:
  Enemy(Board& board, std::size_t number, std::uint64_t seed, Targets targets)
      : board_(board), number_(number), random_(seed), targets_(std::move(targets)) {}

  // -- chance --
  std::uint64_t below(std::uint64_t end) { return random_() % end; }
  bool chance(std::uint64_t one_in) { return below(one_in) == 0; }
  template <class T, std::size_t N>
  const T& one_of(const T (&all)[N]) {
    return all[below(N)];
  }
  std::uint64_t bits() { return random_(); }
  /// A number of the kind that programs get wrong.
  std::uint64_t odd_number();
  void fill(std::span<std::byte> bytes);

  // -- the daemon --
  const std::string& socket_path() const {
    return board_.phase == Phase::decoy ? targets_.decoy : targets_.daemon;
  }
  UniqueFd connect() const;
  /// Nothing if the daemon refuses, which it may.
  /// \param spoil  what the enemy does with its requests before it seals them
  std::optional<SeizedChannel> seize(std::size_t bytes = kLeastChannelBytes,
                                     const std::function<void(int file)>& spoil = {}) const;
  /// One of those that are held, or a new one; null if the daemon refuses.
  SeizedChannel* some_channel();

  // -- what is held beyond an attack, until it is too much --
  void hold(UniqueFd fd);
  void hold(SeizedChannel channel);
  void drop_some();
  void drop_all();

  // -- the run --
  bool is_calm() const { return board_.phase.load(std::memory_order_relaxed) == Phase::calm; }
  Board& board() const { return board_; }
  std::size_t number() const { return number_; }

 private:
  Board& board_;
  std::size_t number_;
  std::mt19937_64 random_;
  Targets targets_;
  std::vector<UniqueFd> fds_;
  std::vector<SeizedChannel> channels_;
};

/// The life of a hostile process, until it is killed: computes while it is calm, and attacks else.
[[noreturn]] void live_as_enemy(Board& board, std::size_t number, std::uint64_t seed,
                                const Targets& targets, const Arms& arms);

}  // namespace kvhive::testing
