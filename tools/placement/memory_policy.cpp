#include "tools/placement/memory_policy.hpp"

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <utility>
#include <vector>

namespace kvhive {
namespace {

constexpr std::size_t kBits = sizeof(unsigned long) * CHAR_BIT;

/// Bits of nodes. The kernel wants room for all that it was built for, at most 1,024.
struct NodeMask {
  std::vector<unsigned long> words = std::vector<unsigned long>(1024 / kBits);

  /// The kernel takes one bit less than it is told.
  unsigned long bits() const { return words.size() * kBits + 1; }
};

/// False where the kernel knows of no policies.
bool has_default_policy() {
  int mode = 0;
  NodeMask mask;
  return syscall(SYS_get_mempolicy, &mode, mask.words.data(), mask.bits() - 1, nullptr, 0) == 0 &&
         mode == MPOL_DEFAULT;
}

bool set_policy(int mode, const NodeMask& mask) {
  return syscall(SYS_set_mempolicy, mode, mask.words.data(), mask.bits()) == 0;
}

}  // namespace

Expected<SpreadMemory> SpreadMemory::over(const NodeList& nodes) {
  if (nodes.empty() || !has_default_policy()) return SpreadMemory(false);
  NodeMask mask;
  for (const std::uint32_t node : nodes)
    if (node < 1024) mask.words[node / kBits] |= 1ul << (node % kBits);
  if (!set_policy(MPOL_INTERLEAVE, mask)) return os_failure("set_mempolicy");
  return SpreadMemory(true);
}

SpreadMemory::SpreadMemory(SpreadMemory&& other) noexcept
    : is_active_(std::exchange(other.is_active_, false)) {}

SpreadMemory::~SpreadMemory() {
  if (is_active_) (void)syscall(SYS_set_mempolicy, MPOL_DEFAULT, nullptr, 0);
}

}  // namespace kvhive
