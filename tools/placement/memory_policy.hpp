#pragma once
// On which memory nodes new memory lies.

#include "base/expected.hpp"
#include "tools/placement/processor_map.hpp"

namespace kvhive {

/// As long as it lives, memory that this thread, and programs that it starts, are the first to
/// touch lies on several nodes by turns, page by page. Without nodes, and where the operator has
/// chosen a policy (numactl), it does nothing. Used by the thread that made it.
class SpreadMemory {
 public:
  /// Errors: the kernel refuses (a container may forbid the call); then nothing has changed.
  [[nodiscard]] static Expected<SpreadMemory> over(const NodeList& nodes);

  SpreadMemory(SpreadMemory&& other) noexcept;
  SpreadMemory& operator=(SpreadMemory&&) = delete;
  ~SpreadMemory();

  bool is_active() const { return is_active_; }

 private:
  explicit SpreadMemory(bool is_active) : is_active_(is_active) {}

  bool is_active_;
};

}  // namespace kvhive
