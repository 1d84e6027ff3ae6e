#pragma once
// The list of the statistics that a process counts in its slot of the pool. Memory layout, reports,
// tables and JSON are made from this list. A new counter needs one row here and a bump() where the
// event happens:
//
//   bump(pool.counters()["hit_blocks"], blocks);
//
// The name is looked up by the compiler; a name that is not in the list does not compile.
//
// A counter of kind `sum` only grows and is never reset, not even when its process dies: the slot's
// next process goes on counting from there. So the sum over all slots is the pool's total since
// kvhived started. What one process has counted is the difference from the values at its sign-in
// (ProcessEntry::at_sign_in). A kill loses the counts of at most one step, and nothing is counted
// twice.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace kvhive {

enum class CounterKind : std::uint8_t {
  sum,    ///< only grows
  gauge,  ///< a current value; 0 when the slot has no process
};

struct CounterInfo {
  std::string_view name;
  CounterKind kind;
  std::string_view help;
};

inline constexpr auto kCounters = std::to_array<CounterInfo>({
    {"queried_blocks", CounterKind::sum,
     "full blocks of prompts that were looked up, once a request: when it was first admitted"},
    {"hit_blocks", CounterKind::sum, "of these, found in the pool (device or host tier)"},
    {"allocated_blocks", CounterKind::sum, "blocks taken in order to be filled"},
    {"evicted_blocks", CounterKind::sum, "cached blocks that lost their content to an allocation"},
    {"published_blocks", CounterKind::sum, "filled blocks made findable by all processes"},
    {"demoted_blocks", CounterKind::sum,
     "blocks evicted from the device tier and moved to the host tier"},
    {"promoted_blocks", CounterKind::sum,
     "blocks found in the host tier and copied to the device tier"},
    {"preemptions_recompute", CounterKind::sum, "running requests stopped, to be computed anew"},
    {"preemptions_swap", CounterKind::sum, "running requests stopped and copied to the host tier"},
    {"generated_tokens", CounterKind::sum, "tokens sampled by the model"},
    {"prompt_tokens", CounterKind::sum,
     "tokens of prompts, once a request: when it was first admitted"},
    {"cached_tokens", CounterKind::sum, "of these, found in the pool instead of computed"},
    {"overloaded_requests", CounterKind::sum, "requests refused because too much was waiting"},
    {"running", CounterKind::gauge, "requests being served"},
    {"waiting", CounterKind::gauge, "requests waiting to be admitted"},
});

/// An index into kCounters, found from the counter's name at compile time.
class CounterName {
 public:
  consteval CounterName(const char* name) : place_(place_of(name)) {}  // NOLINT: "name" is meant
  constexpr std::size_t place() const { return place_; }

 private:
  static consteval std::size_t place_of(std::string_view name) {
    for (std::size_t i = 0; i < kCounters.size(); ++i)
      if (kCounters[i].name == name) return i;
    throw "kCounters has no counter of this name";
  }
  std::size_t place_;
};

/// One value per counter, as read at one time.
struct CounterValues {
  std::array<std::uint64_t, kCounters.size()> values{};

  std::uint64_t operator[](CounterName name) const { return values[name.place()]; }
};

/// Changes a counter that only the calling process writes: no locked instruction is needed.
template <class Number, class Change>
void bump(std::atomic<Number>& counter, Change change) {
  const Number now = counter.load(std::memory_order_relaxed);
  counter.store(now + static_cast<Number>(change), std::memory_order_relaxed);
}

}  // namespace kvhive
