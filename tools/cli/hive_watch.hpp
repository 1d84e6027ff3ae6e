#pragma once
// Keeps up with a daemon for `kvhive top`, `watch` and `events`: attaches to its pool, asks kvhived
// for names and clients, and attaches anew when another daemon listens. All that may wait for a
// process is done in a thread of its own, so that a frame is always drawn on time.

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>

#include "tools/cli/inspector.hpp"
#include "tools/events/pool_names.hpp"

namespace kvhive {

class HiveWatch {
 public:
  using Clock = std::chrono::steady_clock;

  /// What is known now. Pool and status stay those of the last daemon when it has ended.
  struct News {
    enum class Keeper : std::uint8_t { answering, silent, ended };

    std::shared_ptr<const Inspector> hive;         ///< its mapping may be read at any time
    std::shared_ptr<const nlohmann::json> status;  ///< null until the keeper has told it
    Clock::time_point told;                        ///< when it did
    Keeper keeper = Keeper::silent;
    std::string trouble;  ///< one line, unless it answers

    /// Those that the keeper has told; none until it has.
    PoolNames names() const;
    /// The process that has told, a successor perhaps of the one that was attached to.
    pid_t keeper_pid() const;
  };

  /// Attaches for the first time. Errors: those of Inspector::attach().
  /// \param pause  between two questions to the keeper
  [[nodiscard]] static Expected<std::unique_ptr<HiveWatch>> start(
      const std::string& socket, std::chrono::milliseconds pause,
      Privilege privilege = Privilege::metadata_only);
  HiveWatch(const HiveWatch&) = delete;
  HiveWatch& operator=(const HiveWatch&) = delete;
  /// Waits for the question that is being asked: half a second at most, as a rule.
  ~HiveWatch();

  News news() const;
  /// The names in `news`; if the domain is not among them, because it is new, those of the keeper's
  /// next answer. Waits for that at most `limit`, and not while the keeper is silent.
  PoolNames names_with(DomainId domain, const News& news, std::chrono::milliseconds limit) const;
  /// Waits until the keeper has told its status, or does not; at most `limit`.
  void wait_for_first_answer(std::chrono::milliseconds limit) const;

 private:
  HiveWatch(std::string socket, std::chrono::milliseconds pause, Privilege privilege,
            Inspector inspector);
  void run();
  bool ask(News next);
  bool attach(News& next);
  bool pause_or_stop();
  void tell(News news);

  const std::string socket_;
  const std::chrono::milliseconds pause_;
  const Privilege privilege_;
  mutable std::mutex mutex_;  ///< guards what follows
  mutable std::condition_variable changed_;
  News news_;
  bool has_asked_ = false;
  bool is_stopping_ = false;
  std::thread thread_;
};

bool is_same_pool(const Inspector& a, const Inspector& b);

}  // namespace kvhive
