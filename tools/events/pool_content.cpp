#include "tools/events/pool_content.hpp"

#include <algorithm>
#include <utility>

#include "base/check.hpp"

namespace kvhive {
namespace {

bool has_no_parent(std::uint64_t parent) { return parent >= kRootUid; }

}  // namespace

DomainId ContentChange::newest_domain() const {
  DomainId newest;
  for (const StoredContent& block : stored) newest = std::max(newest, block.domain);
  return newest;
}

PoolContent::PoolContent(const PoolMemory& memory, std::optional<ModelId> model)
    : memory_(memory), model_(model), sightings_(memory.geometry().total_blocks()) {
  KV_CHECK(memory.has_tokens());
}

ContentChange PoolContent::read() {
  touched_.clear();
  follow_resets();
  for (std::uint32_t b = 0; b < sightings_.size(); ++b) look_at(BlockId{b});

  ContentChange change;
  std::vector<std::pair<std::uint32_t, RemovedContent>> removed;
  for (const auto& [name, touched] : touched_) {
    const auto listing = listings_.find(name);
    KV_CHECK(listing != listings_.end());
    for (const Tier tier : {Tier::device, Tier::host}) {
      bool& is_told = listing->second.is_told[std::size_t(tier)];
      const Content* content = in_tier(listing->second, tier);
      if (content != nullptr && !is_told) change.stored.push_back(described(*content, tier));
      if (content == nullptr && is_told)
        removed.push_back({touched.depth, {name, tier, touched.group}});
      is_told = content != nullptr;
    }
    if (listing->second.found.empty()) listings_.erase(listing);
  }
  std::sort(change.stored.begin(), change.stored.end(),
            [](const StoredContent& a, const StoredContent& b) { return a.depth < b.depth; });
  std::sort(removed.begin(), removed.end(),
            [](const auto& a, const auto& b) { return a.first > b.first; });
  for (const auto& [depth, content] : removed) change.removed.push_back(content);
  return change;
}

std::vector<StoredContent> PoolContent::all() const {
  std::vector<StoredContent> all;
  for (const auto& [name, listing] : listings_)
    for (const Tier tier : {Tier::device, Tier::host})
      if (listing.is_told[std::size_t(tier)])
        if (const Content* content = in_tier(listing, tier))
          all.push_back(described(*content, tier));
  std::sort(all.begin(), all.end(),
            [](const StoredContent& a, const StoredContent& b) { return a.depth < b.depth; });
  return all;
}

/// What lies behind the new roots may have been seen before this knew of the reset.
void PoolContent::follow_resets() {
  const Resets now = memory_.resets();
  if (std::exchange(resets_, now) == now) return;
  for (const auto& [uid, content] : contents_)
    if (has_no_parent(content.parent)) set_found(uid, has_found_parent(content));
}

void PoolContent::look_at(BlockId block) {
  const BlockView view = memory_.block(block);
  Sighting& known = sightings_[block.value];
  const std::uint64_t serial = view.serial();
  const bool is_ready = view.word().is_ready();
  // A serial is drawn anew for each publication: this is the one that is known.
  if (is_ready ? known.uid != 0 && known.serial == serial : known.uid == 0) return;

  const Tier tier = memory_.tier_of(block);
  if (known.uid != 0) drop_copy(known.uid, tier);
  known = {};
  if (!is_ready) return;

  Uid uid = 0;
  std::uint64_t read_serial = 0;
  Content content;
  ModelId model;
  const bool is_one = read_stably(view, [&] {
    uid = view.has_plausible_uid() ? view.uid() : 0;
    read_serial = view.serial();
    content.name = view.name();
    content.parent = view.parent_uid();
    content.depth = view.depth();
    content.domain = view.domain();
    content.group = view.group();
    const TokenRow row = memory_.tokens_of(block);
    if (view.has_extra()) content.extra = row.extra_key();
    const PoolGeometry& geometry = memory_.geometry();
    model = geometry.model_of(content.group);
    if (contents_.count(uid) == 0) content.tokens = row.read(geometry[model].tokens_per_block);
  });
  // Another process is at it: the next read tells.
  if (!is_one || uid == 0 || (model_ && model != *model_)) return;
  known = {uid, read_serial};
  add_copy(uid, tier, std::move(content));
}

void PoolContent::add_copy(Uid uid, Tier tier, Content&& content) {
  const auto [place, is_new] = contents_.try_emplace(uid, std::move(content));
  Content& held = place->second;
  ++held.copies[std::size_t(tier)];
  if (is_new) {
    if (!has_no_parent(held.parent)) children_[held.parent].insert(uid);
    if (has_found_parent(held)) set_found(uid, true);
  } else if (held.is_found) {
    touched_[held.name] = {held.depth, held.group};
  }
}

void PoolContent::drop_copy(Uid uid, Tier tier) {
  const auto place = contents_.find(uid);
  KV_CHECK(place != contents_.end() && place->second.copies[std::size_t(tier)] != 0, uid);
  Content& held = place->second;
  if (held.is_found) touched_[held.name] = {held.depth, held.group};
  --held.copies[std::size_t(tier)];
  if (held.copies[0] + held.copies[1] != 0) return;
  if (held.is_found) set_found(uid, false);
  if (const auto siblings = children_.find(held.parent); siblings != children_.end()) {
    siblings->second.erase(uid);
    if (siblings->second.empty()) children_.erase(siblings);
  }
  contents_.erase(place);
}

bool PoolContent::has_found_parent(const Content& content) const {
  if (has_no_parent(content.parent)) return resets_of(content.parent) == resets_;
  const auto parent = contents_.find(content.parent);
  return parent != contents_.end() && parent->second.is_found;
}

/// Of the content, and of all contents behind it. Without recursion: sequences are long.
void PoolContent::set_found(Uid uid, bool is_found) {
  std::vector<Uid> open{uid};
  while (!open.empty()) {
    const Uid next = open.back();
    open.pop_back();
    const auto place = contents_.find(next);
    // A damaged descriptor may name itself as its parent.
    if (place == contents_.end() || place->second.is_found == is_found) continue;
    Content& content = place->second;
    content.is_found = is_found;
    if (is_found && content.depth == 0) content.start = content.extra;
    if (is_found && !has_no_parent(content.parent))
      content.start = contents_.at(content.parent).start;
    touched_[content.name] = {content.depth, content.group};
    std::vector<Uid>& found = listings_[content.name].found;
    if (is_found)
      found.push_back(next);
    else
      std::erase(found, next);
    const auto children = children_.find(next);
    if (children != children_.end())
      open.insert(open.end(), children->second.begin(), children->second.end());
  }
}

const PoolContent::Content* PoolContent::in_tier(const Listing& listing, Tier tier) const {
  for (const Uid uid : listing.found) {
    const Content& content = contents_.at(uid);
    if (content.copies[std::size_t(tier)] != 0) return &content;
  }
  return nullptr;
}

StoredContent PoolContent::described(const Content& content, Tier tier) const {
  StoredContent stored{content.name,  std::nullopt,  tier,          content.depth, content.domain,
                       content.group, content.extra, content.start, content.tokens};
  if (!has_no_parent(content.parent)) stored.parent = contents_.at(content.parent).name;
  return stored;
}

}  // namespace kvhive
