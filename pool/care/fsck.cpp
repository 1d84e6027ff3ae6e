#include "pool/care/fsck.hpp"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "pool/care/soundness.hpp"
#include "pool/processes/claims.hpp"
#include "pool/eviction/lanes.hpp"
#include "pool/prefix_index.hpp"

namespace kvhive {
namespace {

constexpr std::size_t kMostViolations = 100;

std::uint64_t get(const std::atomic<std::uint64_t>& field) {
  return field.load(std::memory_order_relaxed);
}

/// `what` is the same in both checks; `figures` may differ, because the pool may be working.
struct Finding {
  std::string what, figures;
};

/// One check of the whole pool.
class Inspection {
 public:
  Inspection(const PoolMemory& memory, Moment moment, const SlotOwners* owners)
      : memory_(memory), moment_(moment), owners_(owners), blocks_(memory) {}

  void run() {
    attached();
    if (const auto header = memory_.check_header(); !header) violation(header.error().text);
    check_slots();
    for (std::uint32_t id = 0; id < memory_.geometry().total_blocks(); ++id)
      check_word(BlockId{id});
    for (const BlockId block : blocks_.ready()) {
      for (const std::string& fault : blocks_.identity_faults(block)) violation(block, fault);
      if (blocks_.has_future_stamp(block)) violation(block, "has a release stamp from the future");
    }
    check_index();
    for (const Tier tier : {Tier::device, Tier::host}) {
      check_free(tier);
      check_order(tier);
    }
    check_lanes();
    check_claims();
    if (get(memory_.control().next_serial) >= kImplausible)
      violation("the counter of names has run away", get(memory_.control().next_serial));
    if (memory_.is_forgotten(get(memory_.control().next_serial)))
      violation("the last reset of the cache forgot contents to come",
                get(memory_.control().first_uid));
    report_.ready = blocks_.ready().size();
    report_.orphans = blocks_.orphans();
    report_.bytes_checked = blocks_.bytes_checked();
  }

  const std::vector<Finding>& findings() const { return findings_; }
  FsckReport& report() { return report_; }

 private:
  void violation(BlockId block, const std::string& text) {
    violation("block " + std::to_string(block.value) + " " + text);
  }
  void violation(std::string what) { findings_.push_back({std::move(what), ""}); }
  void violation(std::string what, std::uint64_t figure) {
    findings_.push_back({std::move(what), " (" + std::to_string(figure) + ")"});
  }

  /// Mask of the slots that may hold blocks, including slots that were signed in to since the check
  /// began.
  std::uint32_t attached() {
    for (std::uint32_t slot = 0; slot < kMaxProcesses; ++slot) {
      const bool is_known = owners_ != nullptr && (*owners_)[slot].use != SlotOwner::Use::vacant;
      if (is_known || pid_in(slot) != 0) attached_ |= 1u << slot;
    }
    return attached_;
  }
  std::uint32_t pid_in(std::uint32_t slot) const {
    return memory_.control().processes[slot].pid.load(std::memory_order_acquire);
  }

  void check_slots() {
    if (owners_ == nullptr) return;
    for (std::uint32_t slot = 0; slot < kMaxProcesses; ++slot) {
      const SlotOwner& owner = (*owners_)[slot];
      const std::uint32_t pid = pid_in(slot);
      const std::string name = "slot " + std::to_string(slot);
      if (pid == 0) continue;  // vacant, or its process has not signed in yet
      if (owner.use == SlotOwner::Use::vacant)
        violation(name + " is signed by pid " + std::to_string(pid) +
                  ", but the keeper knows no process there");
      else if (owner.use == SlotOwner::Use::used && owner.pid != 0 && owner.pid != pid)
        violation(name + " is signed by pid " + std::to_string(pid) + ", but is of pid " +
                  std::to_string(owner.pid));
    }
  }

  void check_word(BlockId block) {
    ++report_.blocks_checked;
    const BlockWord word = memory_.block(block).word();
    for (const std::string& fault :
         Soundness::word_faults(block, word, attached(), memory_.geometry().eviction_policy))
      violation(block, fault);
    if (block == kNullBlock) return;
    switch (word.state()) {
      case BlockState::free: ++report_.free; break;
      case BlockState::filling: ++report_.filling; break;
      case BlockState::ready: ++(word.holders() == 0 ? report_.idle : report_.held); break;
      case BlockState::retired: ++report_.retired; break;
    }
  }

  void check_index() {
    const PrefixIndex index(memory_.index(), memory_.layout().index_buckets);
    std::unordered_map<BlockId, const std::atomic<std::uint64_t>*> hinted;
    for (std::size_t b = 0; b < memory_.layout().index_buckets; ++b) {
      for (const auto& way : memory_.index()[b].way) {
        const std::uint64_t hint = way.load(std::memory_order_acquire);
        const BlockId block = PrefixIndex::block_of(hint);
        if (block == kNullBlock) continue;
        if (!memory_.has_block(block)) {
          violation("index bucket " + std::to_string(b) + " points at block " +
                    std::to_string(block.value) + ", beyond the pool");
        } else if (!memory_.block(block).word().is_ready() ||
                   !index.leads_to(b, hint, memory_.block(block).name())) {
          ++report_.stale_hints;
        } else if (const auto [first, is_new] = hinted.emplace(block, &way); !is_new) {
          // The block may have been taken and published again since the first hint was read, so the
          // first hint is read again.
          const std::uint64_t other = first->second->load(std::memory_order_acquire);
          if (PrefixIndex::block_of(other) == block && other >> 32 == hint >> 32)
            violation(block, "has two hints in the index");
        }
      }
    }
    const auto by_name = [](const Hash128& name) { return std::size_t(name.low); };
    std::unordered_map<Hash128, std::uint64_t, decltype(by_name)> unhinted;
    for (const BlockId block : blocks_.ready()) {
      if (hinted.find(block) != hinted.end()) continue;
      ++report_.unhinted;
      ++unhinted[memory_.block(block).name()];
    }
    if (unhinted.empty()) return;
    for (const auto& [block, hint] : hinted)
      if (const auto copies = unhinted.find(memory_.block(block).name()); copies != unhinted.end())
        report_.duplicates += std::exchange(copies->second, 0);
  }

  void check_free(Tier tier) {
    const auto& layout = memory_.tier_layout(tier);
    const auto* bitmap = memory_.bitmap(tier);
    const auto* summary = memory_.summary(tier);
    for (std::uint32_t i = 0; i < layout.blocks; ++i) {
      const BlockId block{layout.first_block + i};
      const BlockWord before = memory_.block(block).word();
      if (before.state() != BlockState::free || block == kNullBlock) continue;
      const std::size_t group = i / 64 / layout.kGroupWords;
      const bool is_listed = (get(bitmap[i / 64]) >> i % 64 & 1) != 0 &&
                             (get(summary[group / 64]) >> group % 64 & 1) != 0;
      if (is_listed || memory_.block(block).word() != before) continue;
      ++report_.unlisted;
      if (moment_ == Moment::quiescent) violation(block, "is free, but no process would find it");
    }
    const auto check_end = [&](const auto* words, std::size_t bits, const char* what) {
      if (bits % 64 != 0 && get(words[bits / 64]) >> bits % 64 != 0)
        violation("the " + std::string(to_string(tier)) + " tier's " + what +
                  " has bits beyond its end");
    };
    check_end(bitmap, layout.blocks, "free bitmap");
    check_end(summary, layout.bitmap_groups, "free bitmap's summary");
  }

  void check_order(Tier tier) {
    const TierControl& control = memory_.control().tiers[std::size_t(tier)];
    const std::string name = "the " + std::string(to_string(tier)) + " tier's release order";
    const std::uint64_t tail = get(control.tail);
    for (const LaneControl& lane : control.lanes)
      if (const std::uint64_t head = get(lane.head); head > tail)
        violation(name + " starts after its end", head);
    if (tail >= kImplausible) violation(name + " has run away", tail);
    const auto& layout = memory_.tier_layout(tier);
    const auto* ring = memory_.ring(tier);
    for (std::size_t i = 0; i < layout.ring_slots; ++i) {
      const std::uint32_t block = ring[i].load(std::memory_order_relaxed);
      if (block != 0 && block - layout.first_block >= layout.blocks)
        violation(name + " names block " + std::to_string(block) + ", which is not of the tier");
    }
  }

  void check_lanes() {
    const std::vector<LaneTotals> truth = count_lanes(memory_);
    if (truth.size() == 1) return;  // nothing is counted
    for (std::size_t lane = 0; lane < truth.size(); ++lane) {
      const LaneTotals counted = lane_totals(memory_.control(), lane);
      report_.miscounted +=
          counted.cached != truth[lane].cached || counted.idle != truth[lane].idle;
    }
  }

  void check_claims() {
    const auto& claims = memory_.control().claims;
    for (std::size_t place = 0; place < claims.size(); ++place) {
      const auto owner = claimed_by(get(claims[place]));
      if (owner && (attached() >> owner->value & 1) == 0)
        violation("claim " + std::to_string(place) + " is of slot " + std::to_string(owner->value) +
                  ", which has no process");
    }
  }

  const PoolMemory& memory_;
  Moment moment_;
  const SlotOwners* owners_;
  std::uint32_t attached_ = 0;
  Soundness blocks_;
  std::vector<Finding> findings_;
  FsckReport report_;
};

}  // namespace

FsckReport fsck(const PoolMemory& memory, Moment moment, const SlotOwners* owners) {
  Inspection first(memory, moment, owners);
  first.run();
  FsckReport report = std::move(first.report());
  std::vector<Finding> found = first.findings();
  // A second check: a finding that was only an operation under way is gone, corruption is not.
  if (!found.empty()) {
    Inspection again(memory, moment, owners);
    again.run();
    std::unordered_set<std::string> still;
    for (const Finding& finding : again.findings()) still.insert(finding.what);
    std::erase_if(found, [&](const Finding& f) { return still.find(f.what) == still.end(); });
  }
  report.violations_in_all = found.size();
  for (const Finding& finding : found) {
    if (report.violations.size() == kMostViolations) break;
    report.violations.push_back(finding.what + finding.figures);
  }
  return report;
}

}  // namespace kvhive
