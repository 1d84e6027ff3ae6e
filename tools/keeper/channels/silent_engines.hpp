#pragma once
// Which engines are known not to answer, so that the log names each when that begins, at times
// while it lasts, and when it ends. A successor of the keeper does not know it, and names them once
// more.

#include <chrono>
#include <cstdint>
#include <map>

namespace kvhive {

class SilentEngines {
 public:
  using Time = std::chrono::steady_clock::time_point;
  static constexpr std::chrono::seconds kSayAgain{60};

  /// The engine does not answer. True = it is time to say so.
  /// \param connection  its number (Peer::number)
  [[nodiscard]] bool add(std::uint64_t connection, Time now) {
    const auto [said, is_new] = said_.try_emplace(connection, now);
    if (is_new) return true;
    if (now - said->second < kSayAgain) return false;
    said->second = now;
    return true;
  }
  /// The engine has answered, or is gone. True = it was known not to answer.
  bool remove(std::uint64_t connection) { return said_.erase(connection) != 0; }

 private:
  std::map<std::uint64_t, Time> said_;  ///< when it was said last, by connection
};

}  // namespace kvhive
