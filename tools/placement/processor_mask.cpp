#include "tools/placement/processor_mask.hpp"

namespace kvhive {

ProcessorMask::ProcessorMask(const ProcessorList& processors) {
  if (processors.empty()) return;
  words_.resize(processors.back() / CPU_SETSIZE + 1);
  for (const std::uint32_t number : processors)
    CPU_SET(number % CPU_SETSIZE, &words_[number / CPU_SETSIZE]);
}

Expected<void> ProcessorMask::bind() const {
  if (words_.empty()) return {};
  if (sched_setaffinity(0, words_.size() * sizeof(cpu_set_t), words_.data()) == 0) return {};
  return os_failure("sched_setaffinity");
}

}  // namespace kvhive
