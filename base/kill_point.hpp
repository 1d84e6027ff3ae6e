#pragma once
// Named places in code that writes to shared memory, before and after each write, where the crash
// tests kill a process. Only the crash tests' own builds of the pool and of the channel define
// KVHIVE_KILL_POINTS; elsewhere KV_KILL_POINT compiles to nothing.

#ifdef KVHIVE_KILL_POINTS

#include <signal.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvhive {

/// One kill point. All of them are registered before main() starts, whether they are ever reached
/// or not. Their state is per process, and only one thread may use it.
class KillPoint {
 public:
  explicit KillPoint(const char* label) : label_(label) { registry().push_back(this); }
  KillPoint(const KillPoint&) = delete;
  KillPoint& operator=(const KillPoint&) = delete;

  static const std::vector<KillPoint*>& all() { return registry(); }

  void reach() {
    if (is_suspended) return;
    ++hits_;
    if (hits_ == 1 && interruption_ != nullptr) interruption_();
    if (hits_ == kills_at_) raise(SIGKILL);
  }
  /// The process kills itself when this place is reached for the `hit`-th time; 0 = never.
  void arm(std::uint32_t hit) { kills_at_ = hit; }
  /// Calls `interruption` when this place is reached for the first time.
  void interrupt(void (*interruption)()) { interruption_ = interruption; }

  const char* label() const { return label_; }
  std::uint32_t hits() const { return hits_; }
  void forget_hits() { hits_ = 0; }

  /// True while a test plays the part of another process: then reach() does nothing.
  static inline bool is_suspended = false;

 private:
  static std::vector<KillPoint*>& registry() {
    static std::vector<KillPoint*> points;
    return points;
  }

  const char* label_;
  std::uint32_t hits_ = 0;
  std::uint32_t kills_at_ = 0;
  void (*interruption_)() = nullptr;
};

/// The name as a template argument, so that the same name in several files is one kill point.
template <std::size_t Size>
struct KillPointLabel {
  consteval KillPointLabel(const char (&label)[Size]) { std::copy_n(label, Size, text); }
  char text[Size]{};
};

template <KillPointLabel Label>
struct NamedKillPoint {
  static constexpr auto kLabel = Label;
  static inline KillPoint point{kLabel.text};
};

}  // namespace kvhive

#define KV_KILL_POINT(label) ::kvhive::NamedKillPoint<label>::point.reach()

#else
#define KV_KILL_POINT(label) static_cast<void>(0)
#endif
