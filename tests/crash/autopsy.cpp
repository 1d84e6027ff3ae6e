#include "tests/crash/autopsy.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "pool/care/fsck.hpp"
#include "pool/care/pool_report.hpp"
#include "pool/care/reaper.hpp"
#include "pool/eviction/lanes.hpp"
#include "pool/processes/process_slot.hpp"

namespace kvhive::testing {
namespace {

BlockWord word_of(const PoolMemory& memory, std::uint32_t id) {
  return {memory.descriptors()[id].word.load()};
}

std::string describe(std::uint32_t id, BlockWord word) {
  return "block " + std::to_string(id) + " (" + std::string(to_string(word.state())) +
         ", generation " + std::to_string(word.generation()) + ", holders " +
         std::to_string(word.holders()) + ")";
}

void check_fsck(const PoolMemory& memory, const std::string& when, Complaints& complaints) {
  for (const std::string& violation : fsck(memory).violations)
    complaints.push_back("fsck " + when + ": " + violation);
}

/// How many blocks of the tier the processes in `mask` hold.
std::size_t held_by(const PoolMemory& memory, Tier tier, std::uint32_t mask) {
  const auto& layout = memory.tier_layout(tier);
  std::size_t held = 0;
  for (std::uint32_t i = 0; i < layout.blocks; ++i)
    held += (word_of(memory, layout.first_block + i).holders() & mask) != 0;
  return held;
}

/// How many idle blocks kSure has that others cannot take.
std::size_t sure_blocks(const PoolMemory& memory) {
  const std::size_t least = memory.geometry().limits_of(Stage::kSure).min;
  if (least == 0) return 0;
  const LaneTotals has = count_lanes(memory)[Stage::kSure.value + std::size_t{1}];
  return std::min<std::size_t>(has.idle, least - std::min<std::size_t>(least, has.held()));
}

/// Checks that the blocks of each domain with limits are counted right.
void check_lanes(const PoolMemory& memory, const std::string& when, Complaints& complaints) {
  const std::vector<LaneTotals> truth = count_lanes(memory);
  if (truth.size() == 1) return;
  for (std::size_t lane = 0; lane < truth.size(); ++lane) {
    const LaneTotals counted = lane_totals(memory.control(), lane);
    if (counted == truth[lane]) continue;
    const auto text = [](const LaneTotals& t) {
      return std::to_string(t.cached) + " cached, " + std::to_string(t.idle) + " idle, " +
             std::to_string(t.filling) + " filling";
    };
    complaints.push_back("lane " + std::to_string(lane) + " " + when + ": counted are " +
                         text(counted) + ", there are " + text(truth[lane]));
  }
}

/// Checks that every block that `survivors` do not hold can be allocated, each once.
void check_room(BlockPool& newcomer, std::uint32_t survivors, Complaints& complaints) {
  for (const Tier tier : {Tier::device, Tier::host}) {
    const std::size_t room = newcomer.capacity(tier) - held_by(newcomer.memory(), tier, survivors);
    if (newcomer.available(tier) != room)
      complaints.push_back("the counters say " + std::to_string(newcomer.available(tier)) +
                           " blocks can be had, it is " + std::to_string(room));
    const std::size_t sure = tier == Tier::device ? sure_blocks(newcomer.memory()) : 0;
    auto all = newcomer.allocate(tier, room - sure);
    const auto rest = newcomer.allocate(tier, sure, Stage::kSure);
    if (!all || !rest) {
      complaints.push_back("blocks are lost: " + (all ? rest : all).error().text);
      continue;
    }
    all->insert(all->end(), rest->begin(), rest->end());
    if (std::set<BlockId>(all->begin(), all->end()).size() != room)
      complaints.push_back("a block was given out twice");
    newcomer.release(*all);
  }
}

/// Checks that a process that takes a block for another domain finds no byte of the old domain.
void check_scrubbing(BlockPool& newcomer, std::uint32_t survivors, Complaints& complaints) {
  for (const Tier tier : {Tier::device, Tier::host}) {
    const std::size_t room = newcomer.capacity(tier) - held_by(newcomer.memory(), tier, survivors);
    const auto all = newcomer.allocate(tier, room, Stage::kOther);
    if (!all) continue;  // check_room has reported it
    for (const BlockId block : *all)
      if (has_secret(newcomer.memory(), block))
        complaints.push_back("block " + std::to_string(block.value) +
                             " was not scrubbed for another domain");
    newcomer.release(*all);
  }
}

/// The sums of all counters, without the gauges.
std::vector<std::uint64_t> sums(const PoolMemory& memory) {
  const CounterValues totals = report_pool(memory).totals;
  std::vector<std::uint64_t> sums;
  for (std::size_t i = 0; i < kCounters.size(); ++i)
    if (kCounters[i].kind == CounterKind::sum) sums.push_back(totals.values[i]);
  return sums;
}

/// Checks that the next process in the dead one's slot can work.
void check_work(const PoolMemory& memory, Complaints& complaints) {
  const std::vector<std::uint64_t> counted = sums(memory);
  sign_in(memory, Stage::kVictim, 3);
  if (sums(memory) != counted) complaints.push_back("signing in changed what was counted");
  BlockPool next(memory, Stage::kVictim);
  const Prompt prompt(next, counting(100, 2 * next.tokens_per_block()));
  const auto computed = compute(next, prompt);
  next.release(computed);
  const PrefixHit hit = match_all(next, prompt);
  if (hit.blocks != computed)
    complaints.push_back("a prompt published after the death is not found");
  for (std::size_t i = 0; i < hit.blocks.size(); ++i)
    if (!is_payload_right(memory, hit.blocks[i], prompt.chain[i]))
      complaints.push_back("a prompt published after the death has wrong bytes");
  next.release(hit.blocks);
}

/// Only the survivor's claim is left, and who comes next can claim what the victim had claimed.
void check_claims(const PoolMemory& memory, Complaints& complaints) {
  for (const auto& claim : memory.control().claims)
    if (const auto owner = claimed_by(claim.load()); owner && *owner != Stage::kSurvivor)
      complaints.push_back("slot " + std::to_string(owner->value) + " still has a claim");
  Claims claims(memory, Stage::kNewcomer);
  for (const Hash128 name : {Stage::kVictims, Stage::kClaimedByNobody}) {
    const auto claim = claims.claim(name).claim;
    if (!claim) complaints.push_back("what the victim had claimed cannot be claimed");
    if (claim) claims.withdraw(*claim);
  }
  if (claims.claim(Stage::kSurvivors).taken_by == 0)
    complaints.push_back("the survivor has lost its claim");
}

}  // namespace

Complaints examine_at_rest(const PoolMemory& memory, std::uint32_t holders) {
  Complaints complaints;
  BlockPool newcomer(memory, Stage::kNewcomer);
  check_room(newcomer, holders, complaints);
  check_work(memory, complaints);
  check_fsck(memory, "at rest", complaints);
  return complaints;
}

Autopsy::Autopsy(Stage& stage, const Operation& operation)
    : clean_up([](const PoolMemory& memory) { reap(memory, Stage::kVictim); }) {
  // The survivor changes the state meanwhile, so it is not compared.
  if (operation.meanwhile != nullptr) return;
  const PoolMemory& memory = stage.memory();
  sums_ = sums(memory);
  for (std::uint32_t id = 0; id < memory.geometry().total_blocks(); ++id)
    before_.push_back(
        {word_of(memory, id),
         memory.descriptors()[id].uid.load(),
         false,
         {memory.descriptors()[id].hash_low.load(), memory.descriptors()[id].hash_high.load()}});
  for (auto [tier, evictable] : {std::pair{Tier::device, operation.evicts},
                                 std::pair{Tier::host, operation.evicts_on_host}}) {
    for (const BlockId block : stage.survivor().free_queue(tier)) {
      if (evictable == 0) break;
      if (!before_[block.value].word.is_idle()) continue;
      if (memory.block(block).domain() != operation.evicts_in) continue;
      before_[block.value].may_vanish = true;
      --evictable;
    }
  }
  if (operation.may_lose_hints) return;
  const std::size_t of_idle = operation.evicts_in == DomainId{} ? operation.evicts : 0;
  findable_ = {{stage.shared(), Tier::device, 2},
               {stage.shared(), Tier::host, 2 - operation.evicts_on_host},
               {stage.owned(), Tier::device, 2},
               {stage.idle(), Tier::device, 3 - std::min<std::size_t>(of_idle, 3)},
               {stage.unknown(), Tier::device, 0},
               {stage.unknown(), Tier::host, 0},
               {stage.continued(), Tier::device, 2},
               {stage.owned(), Tier::host, 0}};
}

Complaints Autopsy::examine(const PoolMemory& memory) const {
  Complaints complaints;
  const std::vector<std::uint64_t> counted = sums(memory);
  if (!std::equal(sums_.begin(), sums_.end(), counted.begin(), std::less_equal<>()))
    complaints.push_back("a counter has shrunk");
  check_fsck(memory, "before the reaper", complaints);
  clean_up(memory);
  if (sums(memory) != counted) complaints.push_back("the reaper changed what was counted");
  check_fsck(memory, "after the reaper", complaints);
  check_lanes(memory, "after the reaper", complaints);
  check_claims(memory, complaints);
  check_blocks(memory, complaints);
  {
    sign_in(memory, Stage::kNewcomer, 2);
    BlockPool newcomer(memory, Stage::kNewcomer);
    check_contents(newcomer, complaints);
    check_room(newcomer, holder_bit(Stage::kSurvivor), complaints);
  }
  // Called only now, because a second sweep would repair what the first missed.
  if (const ReapReport again = reap(memory, Stage::kVictim); again.freed + again.released != 0)
    complaints.push_back("the reaper left " + std::to_string(again.freed + again.released) +
                         " blocks behind");
  check_work(memory, complaints);
  reap(memory, Stage::kSurvivor);
  BlockPool last(memory, Stage::kNewcomer);
  check_room(last, 0, complaints);
  check_scrubbing(last, 0, complaints);
  check_fsck(memory, "at the end", complaints);
  check_lanes(memory, "at the end", complaints);
  return complaints;
}

/// Checks each block: the survivor's blocks and all published content are unchanged, only the
/// survivor's holder bits are set, and no block is left filling.
void Autopsy::check_blocks(const PoolMemory& memory, Complaints& complaints) const {
  const std::uint32_t victim = holder_bit(Stage::kVictim);
  for (std::uint32_t id = 0; id < before_.size(); ++id) {
    const auto& [was, uid, may_vanish, name] = before_[id];
    const BlockWord is = word_of(memory, id);
    const BlockDescriptor& d = memory.descriptors()[id];
    const auto complain = [&](const std::string& text) {
      complaints.push_back(describe(id, is) + ", which was " + describe(id, was) + ", " + text);
    };
    const bool was_victims = was.state() == BlockState::filling && was.holders() == victim;
    const bool had_content = was.state() == BlockState::ready && !may_vanish;
    if (had_content && (is.state() != BlockState::ready || is.generation() != was.generation() ||
                        d.uid.load() != uid))
      complain("has lost its content");
    if (had_content && is.holders() != (was.holders() & ~victim)) complain("has other holders");
    if (!had_content && !was_victims && was.holders() != 0 && is != was)
      complain("belonged to another process");
    if (!had_content && (was_victims || was.holders() == 0) && is.holders() != 0)
      complain("is held by a dead process");
    if (was.state() != BlockState::retired && is.state() == BlockState::retired)
      complain("is retired");
    const bool had_bytes = was.state() == BlockState::ready;
    if (d.domain.load() == Stage::kOther.value &&
        (has_secret(memory, BlockId{id}) ||
         (had_bytes && is_payload_right(memory, BlockId{id}, name))))
      complain("names the new domain, but still has the old domain's bytes");
    if (is.state() == BlockState::ready &&
        !is_payload_right(memory, BlockId{id}, {d.hash_low.load(), d.hash_high.load()}))
      complain("holds other bytes than its name says");
  }
}

/// Checks that all published blocks are found, and that every byte of a found block is right.
void Autopsy::check_contents(BlockPool& newcomer, Complaints& complaints) const {
  for (const auto& [prompt, tier, blocks] : findable_) {
    const PrefixHit hit = match_all(newcomer, prompt, tier);
    if (hit.blocks.size() < blocks)
      complaints.push_back("of " + std::to_string(blocks) + " published blocks " +
                           std::to_string(hit.blocks.size()) + " are found");
    for (std::size_t i = 0; i < hit.blocks.size(); ++i)
      if (!is_payload_right(newcomer.memory(), hit.blocks[i], prompt.chain[i]))
        complaints.push_back("a wrong block is found");
    newcomer.release(hit.blocks);
  }
}

}  // namespace kvhive::testing
