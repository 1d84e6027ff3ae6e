#include "tests/crash/operations.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string_view>

#include "base/check.hpp"
#include "pool/care/cache_reset.hpp"
#include "pool/care/index_marks.hpp"
#include "pool/care/reaper.hpp"
#include "base/kill_point.hpp"
#include "pool/processes/process_slot.hpp"
#include "tests/support/keep_evicted.hpp"

namespace kvhive::testing {
namespace {

void as_it_is(Stage&) {}

/// The survivor takes all free device blocks but `left`.
void use_up(Stage& stage, std::size_t left) {
  const auto queue = stage.survivor().free_queue(Tier::device);
  std::size_t free = 0;
  for (const BlockId block : queue)
    free += BlockWord{stage.memory().descriptors()[block.value].word.load()}.state() ==
            BlockState::free;
  KV_CHECK(stage.survivor().allocate(Tier::device, free - left).has_value());
}

/// The survivor takes all free host blocks.
void use_up_host(Stage& stage) { (void)stage.survivor().allocate(Tier::host, 6).value(); }

/// Fills the free device blocks with another domain's bytes.
void leave_secrets(Stage& stage) {
  const auto free = stage.survivor().allocate(Tier::device, 6).value();
  fill_with_secret(stage.memory(), free);
  stage.survivor().release(free);
}

IndexBucket& bucket(const Stage& stage, std::uint64_t half_of_hash) {
  return stage.memory().index()[half_of_hash & (stage.memory().layout().index_buckets - 1)];
}

/// Fills the bucket's empty places with hints of names that no test looks for.
void fill_bucket(IndexBucket& full) {
  for (auto& way : full.way)
    if (way.load() == 0) way.store(0xdeadull << 32 | 1);
}

PrefixIndex index_of(const Stage& stage) {
  return {stage.memory().index(), stage.memory().layout().index_buckets};
}

/// Moves the hint of idle()'s first block to its second bucket, as if the first had been full.
void spill_a_hint(Stage& stage) {
  const Hash128 name = stage.idle().chain[0];
  const BlockId block = match_blocks(stage.survivor(), stage.idle(), 1).blocks[0];
  stage.survivor().release({{block}});
  index_of(stage).erase(name, block);
  fill_bucket(bucket(stage, name.low));
  index_of(stage).insert(name, block);
}

/// Marks all buckets of the index.
void mark_all(Stage& stage) {
  for (std::size_t b = 0; b < stage.memory().layout().index_buckets; ++b) index_of(stage).mark(b);
}

bool match(Stage& stage, const Prompt& prompt) {
  const PrefixHit hit = match_all(stage.victim(), prompt);
  stage.hold(hit.blocks, prompt.chain);
  return hit.blocks.size() == prompt.full_blocks();
}

bool allocate(Stage& stage, std::size_t count, DomainId domain = {}) {
  const auto fresh = stage.victim().allocate(Tier::device, count, domain);
  if (fresh) stage.hold(*fresh);
  return fresh.has_value();
}

/// Allocates and fills a prompt's blocks, without publishing them.
void allocate_and_fill(Stage& stage, const Prompt& prompt) {
  stage.blocks = stage.victim().allocate(Tier::device, prompt.full_blocks(), prompt.domain).value();
  fill_blocks(stage.victim(), stage.blocks, prompt.chain);
  stage.hold(stage.blocks);
}

bool publish(Stage& stage, const Prompt& prompt, std::span<const ExtraKey> extras = {}) {
  stage.victim().publish(BlockPool::root(prompt.domain), stage.blocks, prompt.chain, prompt.tokens,
                         extras);
  stage.let_go(stage.blocks);
  stage.hold(stage.blocks, prompt.chain);
  return true;
}

constexpr std::array<ExtraKey, 2> kExtras{ExtraKey{3, 4}, kNoExtraKey};

Prompt with_extras(const Stage& stage, Prompt prompt) {
  const BlockHasher hasher(stage.memory().control().header.secret);
  Hash128 parent = hasher.root(prompt.domain);
  for (std::size_t i = 0; i < prompt.chain.size(); ++i)
    parent = prompt.chain[i] = hasher.child(parent, prompt.of_blocks(i, 1), kExtras[i]);
  return prompt;
}

bool release(Stage& stage) {
  stage.victim().release(stage.blocks);
  stage.let_go(stage.blocks);
  return true;
}

/// Moves a sequence to the tier `to` as block manager and swapper do: finds the blocks that `to`
/// has already, copies and publishes the rest, and then releases `from`.
bool swap(Stage& stage, const std::vector<BlockId>& from, const Prompt& prompt, Tier to) {
  BlockPool& pool = stage.victim();
  const PrefixHit there = match_all(pool, prompt, to);
  const std::size_t found = there.blocks.size(), missing = prompt.full_blocks() - found;
  const auto fresh = pool.allocate(to, missing, prompt.domain);
  if (!fresh) {
    pool.cancel(there);
    return false;
  }
  for (std::size_t i = 0; i < missing; ++i)
    copy_payload(stage.memory(), from[found + i], (*fresh)[i]);
  pool.publish(there.end, *fresh, prompt.names(found, missing), prompt.of_blocks(found, missing));
  stage.hold(joined_ids(there.blocks, *fresh), prompt.chain);
  pool.release(from);
  stage.let_go(from);
  return true;
}

std::vector<Operation> matches() {
  return {
      {"match: idle blocks", as_it_is, [](Stage& s) { return match(s, s.idle()); }},
      {"match: blocks others hold", as_it_is, [](Stage& s) { return match(s, s.shared()); }},
      {"match: miss", as_it_is,
       [](Stage& s) { return match_all(s.victim(), s.unknown()).blocks.empty(); }},
      {"match: stale hints, second bucket",
       [](Stage& s) {
         const Hash128 name = s.idle().chain[0];
         const BlockId block = match_blocks(s.survivor(), s.idle(), 1).blocks[0];
         s.survivor().release({{block}});
         index_of(s).erase(name, block);
         for (const std::uint32_t stale : {13u, 14u}) index_of(s).insert(name, BlockId{stale});
         fill_bucket(bucket(s, name.low));
         index_of(s).insert(name, block);
       },
       [](Stage& s) { return match(s, s.idle()); }},
      {"cancel", [](Stage& s) { s.hit = match_all(s.victim(), s.idle()); },
       [](Stage& s) {
         s.victim().cancel(s.hit);
         return true;
       }},
      {"cancel: place in the order passed by",
       [](Stage& s) {
         s.hit = match_all(s.victim(), s.idle());
         use_up(s, 2);
         s.survivor().release(compute(s.survivor(), s.unknown()));
         // Evicts the blocks just released: the head moves on.
         (void)s.survivor().allocate(Tier::device, 2).value();
       },
       [](Stage& s) {
         s.victim().cancel(s.hit);
         return s.memory().control().tiers[0].epoch.load() == 1;
       }},
  };
}

std::vector<Operation> allocations() {
  return {
      {"allocate: free blocks", as_it_is, [](Stage& s) { return allocate(s, 3); }},
      {"allocate: own ones first",
       [](Stage& s) { s.victim().release(s.victim().allocate(Tier::device, 3).value()); },
       [](Stage& s) { return allocate(s, 4); }},
      {"allocate: evicts, by the ring", [](Stage& s) { use_up(s, 0); },
       [](Stage& s) { return allocate(s, 2); }, 2},
      {"allocate: evicts, by a scan",
       [](Stage& s) {
         use_up(s, 0);
         IdleOrder::invalidate(s.memory().control().tiers[0]);
       },
       [](Stage& s) { return allocate(s, 2); }, 2},
      {"allocate: evicts, ring gone round",
       [](Stage& s) {
         use_up(s, 0);
         for (int i = 0; i < 70; ++i) s.survivor().release(compute(s.survivor(), s.idle()));
       },
       [](Stage& s) { return allocate(s, 2); }, 2},
      {"allocate: free and idle blocks", [](Stage& s) { use_up(s, 1); },
       [](Stage& s) { return allocate(s, 3); }, 2},
      {"allocate: free blocks without hints",
       [](Stage& s) { s.memory().bitmap(Tier::device)[0].store(0); },
       [](Stage& s) { return allocate(s, 5); }},
      {"allocate: stale hints of free blocks",
       [](Stage& s) { s.memory().bitmap(Tier::device)[0].store(0xffff); },
       [](Stage& s) { return allocate(s, 5); }},
      {"allocate: free blocks of another domain", leave_secrets,
       [](Stage& s) { return allocate(s, 3, Stage::kOther); }},
      {"allocate: evicts blocks of another domain",
       [](Stage& s) {
         leave_secrets(s);
         use_up(s, 1);
       },
       [](Stage& s) { return allocate(s, 3, Stage::kOther); }, 2},
      {"allocate: refused", as_it_is, [](Stage& s) { return !allocate(s, 10); }},
  };
}

/// Allocates and demotes the evicted content. True if `copied` blocks are new to the host tier.
bool demote(Stage& stage, std::size_t count, std::size_t copied, DomainId domain = {}) {
  std::vector<Evicted> evicted;
  const auto fresh = stage.victim().allocate(Tier::device, count, domain, &evicted);
  if (!fresh) return false;
  stage.hold(*fresh);
  const std::uint64_t before = stage.victim().counters()["demoted_blocks"].load();
  keep_evicted(stage.victim(), evicted);
  return stage.victim().counters()["demoted_blocks"].load() - before == copied;
}

std::vector<Operation> demotions() {
  return {
      {"demote: free host blocks", [](Stage& s) { use_up(s, 1); },
       [](Stage& s) { return demote(s, 3, 2); }, 2},
      {.name = "demote: the host tier evicts in its turn",
       .prepare =
           [](Stage& s) {
             use_up(s, 0);
             use_up_host(s);
           },
       .run = [](Stage& s) { return demote(s, 2, 2); },
       .evicts = 2,
       .evicts_on_host = 2},
      {.name = "demote: more than there is room for",
       .prepare =
           [](Stage& s) {
             use_up(s, 0);
             use_up_host(s);
           },
       .run = [](Stage& s) { return demote(s, 3, 2); },
       .evicts = 3,
       .evicts_on_host = 2},
      {"demote: the host tier has some of it",
       [](Stage& s) {
         use_up(s, 0);
         const BlockId host = s.survivor().allocate(Tier::host, 1).value()[0];
         fill_blocks(s.survivor(), {{host}}, s.idle().names(0, 1));
         s.survivor().publish(BlockPool::root({}), {{host}}, s.idle().names(0, 1),
                              s.idle().of_blocks(0, 1));
         s.survivor().release({{host}});
       },
       [](Stage& s) { return demote(s, 3, 2); }, 3},
      {"demote: from one domain's block to another's",
       [](Stage& s) {
         leave_secrets(s);
         use_up(s, 1);
         const auto host = s.survivor().allocate(Tier::host, 6, DomainId{4}).value();
         fill_with_secret(s.memory(), host);
         s.survivor().release(host);
       },
       [](Stage& s) { return demote(s, 3, 2, Stage::kOther); }, 2},
      {"demote: extra keys",
       [](Stage& s) {
         s.named_otherwise = with_extras(s, s.unknown());
         const Prompt& named = *s.named_otherwise;
         const auto blocks = s.survivor().allocate(Tier::device, 2).value();
         fill_blocks(s.survivor(), blocks, named.chain);
         s.survivor().publish(BlockPool::root({}), blocks, named.chain, named.tokens, kExtras);
         s.survivor().release(blocks);
         use_up(s, 0);
       },
       [](Stage& s) { return demote(s, 5, 5); }, 5},
  };
}

std::vector<Operation> publications() {
  return {
      {"publish", [](Stage& s) { allocate_and_fill(s, s.unknown()); },
       [](Stage& s) { return publish(s, s.unknown()); }},
      {"publish: a duplicate", [](Stage& s) { allocate_and_fill(s, s.shared()); },
       [](Stage& s) { return publish(s, s.shared()); }},
      {"publish: index full",
       [](Stage& s) {
         allocate_and_fill(s, s.unknown());
         fill_bucket(bucket(s, s.unknown().chain[0].low));
         fill_bucket(bucket(s, s.unknown().chain[0].high));
       },
       [](Stage& s) { return publish(s, s.unknown()); }, 0, true},
      {"publish: extra keys",
       [](Stage& s) {
         s.named_otherwise = with_extras(s, s.unknown());
         allocate_and_fill(s, *s.named_otherwise);
       },
       [](Stage& s) { return publish(s, *s.named_otherwise, kExtras); }},
      {"allocate, fill, publish", as_it_is,
       [](Stage& s) {
         allocate_and_fill(s, s.unknown());
         return publish(s, s.unknown());
       }},
  };
}

std::vector<Operation> releases() {
  return {
      {"release: one block", [](Stage& s) { s.blocks = {s.holdings[1].block}; }, release},
      {"release: several, both tiers, some unpublished",
       [](Stage& s) {
         const PrefixHit there = match_all(s.victim(), s.shared(), Tier::host);
         s.hold(there.blocks, s.shared().chain);
         s.blocks = s.held_blocks();
       },
       release},
      {"release: blocks others hold",
       [](Stage& s) {
         const PrefixHit hit = match_all(s.victim(), s.shared());
         s.hold(hit.blocks, s.shared().chain);
         s.blocks = hit.blocks;
       },
       release},
      {"fork, copy on write",
       [](Stage& s) {
         s.blocks = {s.holdings[0].block, s.holdings[1].block};
       },
       [](Stage& s) {
         s.victim().fork(s.blocks);
         const auto copy = s.victim().make_writable(s.blocks[1]);
         if (!copy || copy->destination == copy->source) return false;
         copy_payload(s.memory(), copy->source, copy->destination);
         s.hold({{copy->destination}});
         s.victim().release(s.blocks);
         return true;
       }},
      {"write in place", as_it_is,
       [](Stage& s) {
         const auto same = s.victim().make_writable(s.holdings[2].block);
         return same && same->destination == same->source;
       }},
  };
}

std::vector<Operation> sequences() {
  return {
      {"swap out",
       [](Stage& s) {
         s.blocks = {s.holdings[0].block, s.holdings[1].block};
       },
       [](Stage& s) { return swap(s, s.blocks, s.owned(), Tier::host); }},
      {"swap in",
       [](Stage& s) {
         const auto there = compute(s.victim(), s.unknown(), Tier::host);
         s.hold(there, s.unknown().chain);
         s.blocks = there;
       },
       [](Stage& s) { return swap(s, s.blocks, s.unknown(), Tier::device); }},
      {"a request from start to end", [](Stage& s) { use_up(s, 1); },
       [](Stage& s) {
         const Prompt& prompt = s.continued();
         const PrefixHit hit = match_all(s.victim(), prompt);
         const auto fresh = s.victim().allocate(Tier::device, 2);
         if (!fresh) {
           s.victim().cancel(hit);
           return false;
         }
         fill_blocks(s.victim(), *fresh, prompt.names(2, 2));
         s.victim().publish(hit.end, *fresh, prompt.names(2, 2), prompt.of_blocks(2, 2));
         s.victim().release(joined_ids(hit.blocks, *fresh));
         return hit.blocks.size() == 2;
       },
       1},
      {"attach and sign in", as_it_is,
       [](Stage& s) {
         const auto memory = PoolMemory::attach(s.fds(), Access::read_write);
         if (!memory) return false;
         sign_in(*memory, Stage::kVictim, 7);
         BlockPool pool(*memory, Stage::kVictim);
         return pool.available(Tier::device) == s.victim().available(Tier::device);
       },
       0, false, false},
      {"clear marks",
       [](Stage& s) {
         spill_a_hint(s);
         mark_all(s);
       },
       [](Stage& s) {
         const ClearedMarks done = clear_marks(s.memory());
         return done.cleared + 1 == s.memory().layout().index_buckets && done.restored == 0;
       }},
      {"clear marks: a predecessor was killed",
       [](Stage& s) {
         spill_a_hint(s);
         index_of(s).clear_mark(index_of(s).home_of(s.idle().chain[0]));
       },
       [](Stage& s) { return clear_marks(s.memory()).restored == 1 && match(s, s.idle()); }, 0,
       true},
      {"reset the cache", as_it_is,
       [](Stage& s) {
         const CacheReset done = reset_cache(s.memory());
         const PrefixHit hit = match_all(s.victim(), s.idle());
         s.victim().cancel(hit);  // where it was stopped, others may have computed them anew
         return done.resets.value == 1 && done.forgotten >= 3 && hit.blocks.empty();
       },
       0, true},
      {"reap",
       [](Stage& s) {
         // The victim holds blocks in every state (filling, ready, shared) and in both tiers.
         s.hold(match_all(s.victim(), s.shared()).blocks, s.shared().chain);
         s.hold(match_all(s.victim(), s.shared(), Tier::host).blocks, s.shared().chain);
         s.hold(s.victim().allocate(Tier::host, 2).value());
       },
       [](Stage& s) {
         s.holdings.clear();
         return reap(s.memory(), Stage::kVictim).freed == 4;
       }},
      {"reap: a lost device",
       [](Stage& s) {
         // The victim first releases its published blocks: the autopsy expects that idle blocks may
         // be lost.
         std::vector<BlockId> published;
         for (const BlockId block : s.held_blocks())
           if (BlockWord{s.memory().descriptors()[block.value].word.load()}.state() ==
               BlockState::ready)
             published.push_back(block);
         s.victim().release(published);
         s.holdings.clear();
       },
       [](Stage& s) { return reap(s.memory(), Stage::kVictim, Unheld::dropped).dropped >= 3; }, 99,
       true},
  };
}

/// The names of a prompt's blocks in the group with a window.
void name_in_window(Stage& s, const Prompt& prompt) {
  s.names.emplace(s.memory().geometry().models[0].groups, prompt.domain, prompt.block_tokens);
  s.names->extend(s.victim().hasher(), prompt.tokens);
}

/// Publishes unknown() in the group with a window; s.blocks are filled.
void publish_in_window(Stage& s, BlockPool& pool) {
  pool.publish(BlockPool::root({}, Stage::kWindow), s.blocks, s.names->names(Stage::kWindow),
               s.unknown().tokens, s.names->extras(Stage::kWindow));
}

/// The survivor computes unknown() in the group with a window and leaves it idle.
void leave_window_idle(Stage& s) {
  name_in_window(s, s.unknown());
  s.blocks = s.survivor().allocate(Tier::device, 2).value();
  fill_blocks(s.survivor(), s.blocks, s.names->names(Stage::kWindow));
  publish_in_window(s, s.survivor());
  s.survivor().release(s.blocks);
}

/// The survivor finds all of idle(), which then is as idle as before, and hit.
void hit_idle(Stage& s) { s.survivor().release(match_all(s.survivor(), s.idle()).blocks); }

/// So an allocation finds only blocks that were hit.
void hit_idle_and_use_up(Stage& s) {
  hit_idle(s);
  use_up(s, 0);
}

/// Operations where blocks that were hit are spared once.
std::vector<Operation> with_chances() {
  constexpr auto kChances = Stage::With::chances;
  return {
      {.name = "chances: match idle blocks",
       .prepare = as_it_is,
       .run = [](Stage& s) { return match(s, s.idle()); },
       .with = kChances},
      {.name = "chances: match what the process holds already",
       .prepare = as_it_is,
       .run = [](Stage& s) { return match(s, s.owned()); },
       .with = kChances},
      {.name = "chances: all were hit, by the ring",
       .prepare = hit_idle_and_use_up,
       .run = [](Stage& s) { return allocate(s, 2); },
       .evicts = 2,
       .with = kChances},
      {.name = "chances: one was hit, by a scan",
       .prepare =
           [](Stage& s) {
             use_up(s, 0);
             const BlockId oldest = s.survivor().free_queue(Tier::device).front();
             s.memory().block(oldest).mark_hit();
             IdleOrder::invalidate(s.memory().control().tiers[0]);
           },
       .run = [](Stage& s) { return allocate(s, 2); },
       .evicts = 3,
       .with = kChances},
  };
}

/// Operations that measure how long blocks live. They write the time, so each time other bytes.
std::vector<Operation> with_lives() {
  constexpr auto kLives = Stage::With::lives;
  return {
      {.name = "lives: match idle blocks, and use them",
       .prepare = as_it_is,
       .run =
           [](Stage& s) {
             const bool found = match(s, s.idle());
             s.victim().touch(s.held_blocks());
             return found;
           },
       .is_repeatable = false,
       .with = kLives},
      {.name = "lives: allocate, one of them evicted",
       .prepare =
           [](Stage& s) {
             for (int i = 0; i < 3; ++i) {
               const PrefixHit hit = match_all(s.survivor(), s.idle());
               s.survivor().touch(hit.blocks);
               s.survivor().release(hit.blocks);
             }
             use_up(s, 1);
           },
       .run = [](Stage& s) { return allocate(s, 2); },
       .evicts = 1,
       .is_repeatable = false,
       .with = kLives},
      {.name = "lives: reset the cache",
       .prepare = as_it_is,
       .run = [](Stage& s) { return reset_cache(s.memory()).resets.value == 1; },
       .may_lose_hints = true,
       .is_repeatable = false,
       .with = kLives},
  };
}

/// Operations on blocks that are found without those before them.
std::vector<Operation> in_groups() {
  constexpr auto kGroups = Stage::With::groups;
  return {
      {.name = "groups: publish in a window",
       .prepare =
           [](Stage& s) {
             name_in_window(s, s.unknown());
             s.blocks = s.victim().allocate(Tier::device, 2).value();
             fill_blocks(s.victim(), s.blocks, s.names->names(Stage::kWindow));
             s.hold(s.blocks);
           },
       .run =
           [](Stage& s) {
             publish_in_window(s, s.victim());
             s.let_go(s.blocks);
             s.hold(s.blocks, s.names->names(Stage::kWindow));
             return s.victim().is_published(s.blocks[1]);
           },
       .with = kGroups},
      {.name = "groups: match a block of a window without the one before",
       .prepare = leave_window_idle,
       .run =
           [](Stage& s) {
             const auto names = s.names->names(Stage::kWindow).subspan(1, 1);
             const PrefixHit hit = s.victim().match(
                 Tier::device, BlockPool::root({}, Stage::kWindow, 1), names,
                 s.unknown().of_blocks(1, 1), s.names->extras(Stage::kWindow).subspan(1, 1));
             s.hold(hit.blocks, names);
             return hit.blocks == std::vector{s.blocks[1]};
           },
       .with = kGroups},
      {.name = "groups: demote blocks of a window",
       .prepare =
           [](Stage& s) {
             leave_window_idle(s);
             s.survivor().release(match_all(s.survivor(), s.idle()).blocks);  // younger now
             use_up(s, 0);
           },
       .run = [](Stage& s) { return demote(s, 2, 2); },
       .evicts = 2,
       .with = kGroups},
      {.name = "groups: release what has left a window",
       .prepare =
           [](Stage& s) {
             leave_window_idle(s);
             s.blocks = {s.victim()
                             .match(Tier::device, BlockPool::root({}, Stage::kWindow),
                                    s.names->names(Stage::kWindow).first(1),
                                    s.unknown().of_blocks(0, 1))
                             .blocks};
             s.hold(s.blocks, s.names->names(Stage::kWindow).first(1));
           },
       .run = release,
       .with = kGroups},
  };
}

/// Operations under the domains' limits.
std::vector<Operation> limited() {
  constexpr auto kLanes = Stage::With::lanes;
  const auto cached = [](Stage& s, DomainId domain) {
    return s.victim().lanes().totals(s.victim().lanes().of(domain)).cached;
  };
  return {
      {.name = "lanes: takes its own at the maximum",
       .prepare =
           [](Stage& s) {
             s.survivor().release(compute(s.survivor(), s.prompt({7, 8, 9}, Stage::kLimited)));
           },
       .run =
           [=](Stage& s) {
             return allocate(s, 2, Stage::kLimited) && cached(s, Stage::kLimited) == 2;
           },
       .evicts = 1,
       .with = kLanes,
       .evicts_in = Stage::kLimited},
      {.name = "lanes: refused at the maximum",
       .prepare =
           [](Stage& s) {
             (void)compute(s.survivor(), s.prompt({7, 8, 9, 10}, Stage::kLimited));
           },
       .run = [](Stage& s) { return !allocate(s, 1, Stage::kLimited); },
       .with = kLanes},
      {.name = "lanes: passes over a minimum",
       .prepare =
           [](Stage& s) {
             s.survivor().release(compute(s.survivor(), s.prompt({7, 8}, Stage::kSure)));
             s.survivor().release(match_all(s.survivor(), s.idle()).blocks);  // younger now
             use_up(s, 0);
           },
       .run = [=](Stage& s) { return allocate(s, 2) && cached(s, Stage::kSure) == 2; },
       .evicts = 2,
       .with = kLanes},
      {.name = "lanes: takes what is above a minimum",
       .prepare =
           [](Stage& s) {
             s.survivor().release(compute(s.survivor(), s.prompt({7, 8, 9}, Stage::kSure)));
             s.survivor().release(match_all(s.survivor(), s.idle()).blocks);
             use_up(s, 0);
           },
       .run = [=](Stage& s) { return allocate(s, 1) && cached(s, Stage::kSure) == 2; },
       .evicts = 1,
       .with = kLanes,
       .evicts_in = Stage::kSure},
  };
}

/// An engine of the second model computes three blocks and leaves them idle, older than idle().
void leave_second_idle(Stage& s) {
  const CacheGroups& groups = s.memory().geometry()[Stage::kSecond].groups;
  s.names.emplace(groups, DomainId{}, 3);
  const std::vector<TokenId> tokens = counting(20, 9);
  s.names->extend(s.survivor().hasher(), tokens);
  const auto names = s.names->names(Stage::kOfSecond);
  BlockPool second(s.memory(), Stage::kSurvivor, Scrub::on_domain_change, {}, Stage::kSecond);
  s.blocks = second.allocate(Tier::device, 3).value();
  fill_blocks(second, s.blocks, names);
  second.publish(BlockPool::root({}, Stage::kOfSecond), s.blocks, names, tokens);
  second.release(s.blocks);
  s.survivor().release(match_all(s.survivor(), s.idle()).blocks);  // younger now
}

/// Blocks of another model.
std::vector<Operation> in_models() {
  constexpr auto kModels = Stage::With::models;
  return {
      {.name = "models: evict another model's blocks",
       .prepare =
           [](Stage& s) {
             leave_second_idle(s);
             use_up(s, 0);
           },
       .run = [=](Stage& s) { return allocate(s, 3); },
       .evicts = 3,
       .with = kModels},
      {.name = "models: demote another model's blocks",
       .prepare =
           [](Stage& s) {
             leave_second_idle(s);
             use_up(s, 0);
           },
       .run = [](Stage& s) { return demote(s, 2, 2); },
       .evicts = 2,
       .with = kModels},
      {.name = "models: publish",
       .prepare =
           [](Stage& s) {
             s.blocks = s.victim().allocate(Tier::device, 2).value();
             fill_blocks(s.victim(), s.blocks, s.unknown().chain);
             s.hold(s.blocks);
           },
       .run =
           [](Stage& s) {
             s.victim().publish(BlockPool::root({}), s.blocks, s.unknown().chain,
                                s.unknown().tokens);
             s.let_go(s.blocks);
             s.hold(s.blocks, s.unknown().chain);
             return s.victim().is_published(s.blocks[1]);
           },
       .with = kModels},
  };
}

std::vector<Operation> claims() {
  return {
      {"claim", as_it_is,
       [](Stage& s) {
         return s.victim().claims().claim(Stage::kClaimedByNobody).claim.has_value();
       }},
      {"claim: taken", as_it_is,
       [](Stage& s) { return s.victim().claims().claim(Stage::kSurvivors).taken_by != 0; }},
      {"claim: withdrawn", as_it_is,
       [](Stage& s) {
         s.victim().claims().withdraw(s.claim);
         return s.memory().control().claims[s.claim.place].load() == 0;
       }},
  };
}

/// The operations of these names, where blocks are counted.
std::vector<Operation> counted(const std::vector<Operation>& all,
                               std::initializer_list<std::string_view> names) {
  std::vector<Operation> chosen;
  for (const std::string_view name : names) {
    const auto found = std::find_if(all.begin(), all.end(),
                                    [&](const Operation& each) { return each.name == name; });
    KV_CHECK(found != all.end(), name);
    chosen.push_back(*found);
    chosen.back().name = "lanes: " + chosen.back().name;
    chosen.back().with = Stage::With::lanes;
  }
  return chosen;
}

/// Releases new blocks and then evicts all idle blocks, so that the head of the release order
/// passes all earlier releases.
void pass_by(Stage& s) {
  s.survivor().release(compute(s.survivor(), s.unknown()));
  const std::size_t left = s.survivor().available(Tier::device);
  s.survivor().release(s.survivor().allocate(Tier::device, left).value());
}

BlockDescriptor& published_as(const Stage& s, Hash128 name) {
  for (std::uint32_t id = 1; id < s.memory().geometry().total_blocks(); ++id) {
    const BlockView block = s.memory().block(BlockId{id});
    if (block.word().is_ready() && block.name() == name) return s.memory().descriptors()[id];
  }
  KV_CHECK(false, "no block has this name");
  std::abort();
}

/// Evicts all idle blocks, and publishes unknown()'s first block in place of idle()'s first block,
/// which is idle then, too.
BlockDescriptor& replace_idle(Stage& s) {
  BlockDescriptor& old = published_as(s, s.idle().chain[0]);
  const std::vector<BlockId> place{BlockId{std::uint32_t(&old - s.memory().descriptors())}};
  const auto all =
      s.survivor().allocate(Tier::device, s.survivor().available(Tier::device)).value();
  fill_blocks(s.survivor(), place, s.unknown().names(0, 1));
  s.survivor().publish(BlockPool::root({}), place, s.unknown().names(0, 1),
                       s.unknown().of_blocks(0, 1));
  s.survivor().release(all);
  return old;
}

/// The same, as if the block had been taken 2^28 times: its generation is the old one again.
void replace_idle_and_come_round(Stage& s) {
  BlockDescriptor& block = replace_idle(s);
  const BlockWord now{block.word.load()};
  block.word.store(BlockWord::make(now.state(), now.generation() - 1, now.holders()).bits);
}

/// Publishes idle()'s blocks once more. True if the first got a uid of its own.
bool publish_with_own_uid(Stage& s) {
  publish(s, s.idle());
  const BlockView block = s.memory().block(s.blocks[0]);
  return block.uid() == block.serial();
}

/// Runs `part` as the survivor, in the victim's process: no kill point kills it there.
template <class Part>
auto as_survivor(Part&& part) {
#ifdef KVHIVE_KILL_POINTS
  KillPoint::is_suspended = true;
  auto result = part();
  KillPoint::is_suspended = false;
  return result;
#else
  return part();
#endif
}

/// The survivor releases new blocks and then evicts. True if owned()'s blocks go first, the end of
/// owned() before its start.
bool evicts_owned_first(Stage& s) {
  const std::vector<BlockId> owned = s.blocks;
  return as_survivor([&] {
    BlockPool& pool = s.survivor();
    pool.release(compute(pool, s.unknown()));
    const std::size_t free = pool.available(Tier::device) - owned.size() - 2;
    const auto taken = pool.allocate(Tier::device, free + 2).value();
    return taken[free] == owned[1] && taken[free + 1] == owned[0];
  });
}

/// Each idle block's place in the ring names the block.
void expect_hints(Stage& s) {
  const auto& layout = s.memory().tier_layout(Tier::device);
  for (std::uint32_t id = 1; id < layout.blocks; ++id) {
    const BlockView block = s.memory().block(BlockId{id});
    if (!block.word().is_idle()) continue;
    const std::size_t place = block.stamp() % layout.ring_slots;
    KV_CHECK(s.memory().ring(Tier::device)[place].load() == id, id, block.stamp());
  }
}

}  // namespace

const std::vector<Operation>& races() {
  static const std::vector<Operation> all = {
      {.name = "match: the block gets other content before it is pinned",
       .prepare = as_it_is,
       .run = [](Stage& s) { return match_all(s.victim(), s.idle()).blocks.empty(); },
       .interrupted_at = "pin.before_cas",
       .meanwhile = [](Stage& s) { replace_idle(s); }},
      {.name = "match: the generation comes round before the pin",
       .prepare = as_it_is,
       .run =
           [](Stage& s) {
             const bool has_missed = match_all(s.victim(), s.idle()).blocks.empty();
             // The pin of the other content was taken back.
             return has_missed && s.victim().available(Tier::device) == 9 &&
                    BlockWord{published_as(s, s.unknown().chain[0]).word.load()}.is_idle();
           },
       .interrupted_at = "pin.before_cas",
       .meanwhile = replace_idle_and_come_round},
      {.name = "publish: an equal block gets other content while it is compared",
       .prepare = [](Stage& s) { allocate_and_fill(s, s.idle()); },
       .run = publish_with_own_uid,
       .interrupted_at = "publish.compared",
       .meanwhile = [](Stage& s) { replace_idle(s); }},
      {.name = "publish: the generation comes round while an equal block is compared",
       .prepare = [](Stage& s) { allocate_and_fill(s, s.idle()); },
       .run = publish_with_own_uid,
       .interrupted_at = "publish.compared",
       .meanwhile = replace_idle_and_come_round},
      {.name = "allocate: a block is freed while its group is struck off",
       .prepare = [](Stage& s) { s.blocks = s.survivor().allocate(Tier::device, 6).value(); },
       .run =
           [](Stage& s) {
             // The first may miss the block that is being freed; the second must not.
             return allocate(s, 1) && allocate(s, 1) &&
                    s.victim().counters()["evicted_blocks"].load() <= 1;
           },
       .interrupted_at = "free.before_summary_clear",
       .meanwhile = [](Stage& s) { s.survivor().release(s.blocks); }},
      {.name = "allocate: a block is freed while its bit is cleared",
       .prepare =
           [](Stage& s) {
             s.blocks = s.survivor().allocate(Tier::device, 6).value();
             s.memory().bitmap(Tier::device)[0].store(1ull << s.blocks[0].value);
           },
       .run = [](Stage& s) { return allocate(s, 1); },
       .interrupted_at = "free.before_stale_bit_clear",
       .meanwhile = [](Stage& s) { s.survivor().release({{s.blocks[0]}}); }},
      {.name = "publish: another process names it first",
       .prepare = [](Stage& s) { allocate_and_fill(s, s.unknown()); },
       .run = [](Stage& s) { return publish(s, s.unknown()); },
       .interrupted_at = "publish.serials_drawn",
       .meanwhile = [](Stage& s) { s.survivor().release(compute(s.survivor(), s.unknown())); }},
      {.name = "allocate: a candidate is pinned first",
       .prepare = [](Stage& s) { use_up(s, 0); },
       .run = [](Stage& s) { return !allocate(s, 3); },
       .interrupted_at = "evict.before_cas",
       .meanwhile = [](Stage& s) { (void)match_all(s.survivor(), s.idle()); }},
      {.name = "release: what is idle has its hint",
       .prepare =
           [](Stage& s) {
             s.blocks = {s.holdings[0].block, s.holdings[1].block};
           },
       .run = release,
       .interrupted_at = "unpin.cleared",
       .meanwhile = expect_hints},
      {.name = "release: passed by while clearing bits",
       .prepare =
           [](Stage& s) {
             s.blocks = {s.holdings[0].block, s.holdings[1].block};
           },
       .run = [](Stage& s) { return release(s) && evicts_owned_first(s); },
       .interrupted_at = "release.stamped",
       .meanwhile = pass_by},
      {.name = "reap: passed by while clearing bits",
       .prepare =
           [](Stage& s) {
             s.blocks = {s.holdings[0].block, s.holdings[1].block};
           },
       .run =
           [](Stage& s) {
             s.holdings.clear();
             reap(s.memory(), Stage::kVictim);
             return evicts_owned_first(s);
           },
       .interrupted_at = "reap.before_clear",
       .meanwhile = pass_by},
      {.name = "clear marks: a hint is inserted meanwhile",
       .prepare =
           [](Stage& s) {
             fill_bucket(bucket(s, s.unknown().chain[0].low));
             mark_all(s);
           },
       .run =
           [](Stage& s) { return clear_marks(s.memory()).restored == 1 && match(s, s.unknown()); },
       .interrupted_at = "marks.before_clear",
       .meanwhile = [](Stage& s) { s.survivor().release(compute(s.survivor(), s.unknown())); }},
      {.name = "publish: the mark is cleared before the hint is there",
       .prepare =
           [](Stage& s) {
             allocate_and_fill(s, s.unknown());
             fill_bucket(bucket(s, s.unknown().chain[0].low));
           },
       .run = [](Stage& s) { return publish(s, s.unknown()) && match(s, s.unknown()); },
       .interrupted_at = "index.spilled",
       .meanwhile = [](Stage& s) { clear_marks(s.memory()); }},
      {.name = "release: overtaken by the ring",
       .prepare =
           [](Stage& s) {
             s.blocks = {s.holdings[0].block, s.holdings[1].block};
           },
       .run = release,
       .interrupted_at = "stamp.drawn",
       .meanwhile =
           [](Stage& s) {
             for (int i = 0; i < 70; ++i) s.survivor().release(compute(s.survivor(), s.idle()));
           }},
      {.name = "chances: a block is pinned before it is spared",
       .prepare = hit_idle_and_use_up,
       .run = [](Stage& s) { return !allocate(s, 3); },
       .interrupted_at = "spare.before_cas",
       .meanwhile = [](Stage& s) { (void)match_all(s.survivor(), s.idle()); },
       .with = Stage::With::chances},
      {.name = "chances: a block is used again before it is stamped",
       .prepare = hit_idle_and_use_up,
       .run = [](Stage& s) { return allocate(s, 2) && s.victim().available(Tier::device) == 1; },
       .interrupted_at = "spare.before_stamp",
       .meanwhile = hit_idle,
       .with = Stage::With::chances},
      {.name = "chances: a block is evicted before it is stamped",
       .prepare = hit_idle_and_use_up,
       .run = [](Stage& s) { return allocate(s, 2) && s.victim().available(Tier::device) == 0; },
       .interrupted_at = "spare.before_stamp",
       .meanwhile = [](Stage& s) { (void)s.survivor().allocate(Tier::device, 1).value(); },
       .with = Stage::With::chances},
      {.name = "allocate: a passed block becomes idle",
       .prepare =
           [](Stage& s) {
             s.hit = match_blocks(s.survivor(), s.idle(), 3);
             use_up(s, 2);
             s.survivor().release(compute(s.survivor(), s.unknown()));
           },
       .run = [](Stage& s) { return allocate(s, 2); },
       .interrupted_at = "evict.after_cas",
       .meanwhile = [](Stage& s) { s.survivor().cancel(s.hit); }},
  };
  return all;
}

const std::vector<Operation>& operations() {
  static const std::vector<Operation> all = [] {
    std::vector<Operation> list;
    for (const auto& group :
         {matches(), allocations(), demotions(), publications(), releases(), sequences(), claims()})
      list.insert(list.end(), group.begin(), group.end());
    const auto in_lanes = counted(
        list, {"match: idle blocks", "cancel", "allocate: evicts, by the ring",
               "allocate: evicts, ring gone round", "allocate: evicts blocks of another domain",
               "allocate: refused", "demote: free host blocks", "publish",
               "release: several, both tiers, some unpublished", "reap", "reap: a lost device"});
    for (const auto& group :
         {limited(), in_lanes, in_groups(), in_models(), with_chances(), with_lives()})
      list.insert(list.end(), group.begin(), group.end());
    return list;
  }();
  return all;
}

}  // namespace kvhive::testing
