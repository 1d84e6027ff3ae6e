#include "tools/events/kv_events.hpp"

#include <nlohmann/json.hpp>

namespace kvhive {
namespace {

using Json = nlohmann::ordered_json;

/// vLLM's names of places. The pool's own tier is what an engine computes with, whatever it is made
/// of.
const char* medium_of(Tier tier) { return tier == Tier::device ? "GPU" : "CPU"; }

std::vector<std::uint8_t> big_endian(std::initializer_list<std::uint64_t> words) {
  std::vector<std::uint8_t> bytes;
  for (const std::uint64_t word : words)
    for (int shift = 56; shift >= 0; shift -= 8)
      bytes.push_back(static_cast<std::uint8_t>(word >> shift));
  return bytes;
}

Json hash_of(const Hash128& name, HashForm form) {
  if (form == HashForm::integers) return name.low;
  return Json::binary(big_endian({name.high, name.low}));
}

/// What the block's content depends on besides its tokens and what is before it. The domain is in
/// the first block's only, since the others inherit it, as vLLM does with a salt. An adapter's name
/// is in each block's, as vLLM's, in place of the digest that the pool has of it.
Json extra_keys_of(const StoredContent& content, const PoolNames& names) {
  Json keys = Json::array();
  if (!content.parent && content.domain.value != 0) keys.push_back(names.domain(content.domain));
  if (const auto adapter = names.adapter(content.start))
    keys.push_back(*adapter);
  else if (!is_none(content.extra))
    keys.push_back(Json::binary(big_endian({content.extra[0], content.extra[1]})));
  return keys.empty() ? Json(nullptr) : keys;
}

/// vLLM's names of kinds (KVCacheSpecKind).
const char* kind_of(const CacheGroup& group) {
  switch (group.kind) {
    case CacheKind::full: return "full_attention";
    case CacheKind::sliding_window: return "sliding_window";
    case CacheKind::chunked_local: return "chunked_local_attention";
  }
  return "unknown";
}

/// What an event says of the group, in vLLM's order.
std::vector<std::pair<const char*, Json>> group_fields(const CacheGroups& groups, GroupId group) {
  // A damaged descriptor may name a group that there is none of.
  if (groups.is_one_full() || groups.place(group) >= groups.count) return {};
  const CacheGroup& of = groups[group];
  return {{"group_idx", groups.place(group)},
          {"kv_cache_spec_kind", kind_of(of)},
          {"kv_cache_spec_sliding_window",
           of.kind == CacheKind::sliding_window ? Json(of.span) : Json(nullptr)}};
}

/// One event of contents that follow each other.
class StoredEvent {
 public:
  StoredEvent(const StoredContent& first, const PoolNames& names, HashForm form)
      : form_(form),
        tier_(first.tier),
        group_(first.group),
        parent_(first.parent ? hash_of(*first.parent, form) : Json(nullptr)) {
    if (const auto adapter = names.adapter(first.start)) adapter_ = *adapter;
  }

  bool is_followed_by(const StoredContent& next) const {
    return next.tier == tier_ && next.parent && *next.parent == last_;
  }
  void add(const StoredContent& content, const PoolNames& names) {
    hashes_.push_back(hash_of(content.name, form_));
    tokens_.insert(tokens_.end(), content.tokens.begin(), content.tokens.end());
    extras_.push_back(extra_keys_of(content, names));
    has_extras_ |= !extras_.back().is_null();
    last_ = content.name;
  }
  Json written(EventForm form, std::uint32_t block_tokens, const CacheGroups& groups) const {
    const char* medium = medium_of(tier_);
    const Json extras = has_extras_ ? extras_ : Json(nullptr);
    const auto group = group_fields(groups, group_);
    if (form == EventForm::arrays) {
      Json event = {"BlockStored", hashes_, parent_,  tokens_, block_tokens,
                    nullptr,       medium,  adapter_, extras};
      for (const auto& [name, value] : group) event.push_back(value);
      return event;
    }
    Json event = {
        {"type", "BlockStored"}, {"block_hashes", hashes_},    {"parent_block_hash", parent_},
        {"token_ids", tokens_},  {"block_size", block_tokens}, {"lora_id", nullptr},
        {"medium", medium},      {"lora_name", adapter_}};
    if (has_extras_) event["extra_keys"] = extras;
    for (const auto& [name, value] : group)
      if (!value.is_null()) event[name] = value;
    return event;
  }

 private:
  HashForm form_;
  Tier tier_;
  GroupId group_;
  Json parent_;
  Json adapter_;  ///< null = none, or it is not known
  Hash128 last_;
  Json hashes_ = Json::array();
  std::vector<TokenId> tokens_;
  Json extras_ = Json::array();
  bool has_extras_ = false;
};

Json removed_event(const Json& hashes, Tier tier, EventForm form, const CacheGroups& groups,
                   GroupId group) {
  const bool has_group = !groups.is_one_full();
  if (form == EventForm::arrays) {
    Json event = {"BlockRemoved", hashes, medium_of(tier)};
    if (has_group) event.push_back(groups.place(group));
    return event;
  }
  Json event = {{"type", "BlockRemoved"}, {"block_hashes", hashes}, {"medium", medium_of(tier)}};
  if (has_group) event["group_idx"] = groups.place(group);
  return event;
}

Json cleared_event(EventForm form) {
  if (form == EventForm::arrays) return Json::array({"AllBlocksCleared"});
  return {{"type", "AllBlocksCleared"}};
}

/// Sequences one after the other: a content is followed by a child of it where there is one.
std::vector<const StoredContent*> in_chains(const std::vector<StoredContent>& stored) {
  const auto key = [](const Hash128& name, Tier tier) { return name.low ^ std::uint64_t(tier); };
  std::unordered_multimap<std::uint64_t, std::size_t> by_parent;
  for (std::size_t i = 0; i < stored.size(); ++i)
    if (stored[i].parent) by_parent.emplace(key(*stored[i].parent, stored[i].tier), i);
  std::vector<bool> is_taken(stored.size());
  std::vector<const StoredContent*> order;
  for (std::size_t first = 0; first < stored.size(); ++first) {
    for (std::size_t i = first; !is_taken[i];) {
      is_taken[i] = true;
      order.push_back(&stored[i]);
      const auto child = by_parent.find(key(stored[i].name, stored[i].tier));
      if (child == by_parent.end()) break;
      i = child->second;
      by_parent.erase(child);
    }
  }
  return order;
}

/// Collects events, and cuts them into batches.
class Batches {
 public:
  explicit Batches(double unix_seconds) : seconds_(unix_seconds) {}

  void add(Json event) { events_.push_back(std::move(event)); }
  std::size_t room() const { return kMostBlocksInBatch - blocks_; }
  void count(std::size_t blocks) {
    blocks_ += blocks;
    if (room() == 0) cut();
  }
  std::vector<std::string> take() {
    if (!events_.empty()) cut();
    return std::move(batches_);
  }

 private:
  void cut() {
    const std::vector<std::uint8_t> bytes =
        Json::to_msgpack(Json::array({seconds_, std::move(events_), nullptr}));
    batches_.emplace_back(bytes.begin(), bytes.end());
    events_ = Json::array();
    blocks_ = 0;
  }

  double seconds_;
  Json events_ = Json::array();
  std::size_t blocks_ = 0;
  std::vector<std::string> batches_;
};

}  // namespace

std::vector<std::string> EventWriter::batches(const ContentChange& change, const PoolNames& names,
                                              double unix_seconds, bool clear_first) const {
  Batches batches(unix_seconds);
  if (clear_first) batches.add(cleared_event(format_.events));
  const std::vector<const StoredContent*> stored = in_chains(change.stored);
  for (std::size_t i = 0; i < stored.size();) {
    StoredEvent event(*stored[i], names, format_.hashes);
    std::size_t blocks = 0;
    do {
      event.add(*stored[i++], names);
    } while (++blocks < batches.room() && i < stored.size() && event.is_followed_by(*stored[i]));
    batches.add(event.written(format_.events, block_tokens_, groups_));
    batches.count(blocks);
  }
  for (std::size_t i = 0; i < change.removed.size();) {
    const auto [name, tier, group] = change.removed[i];
    Json hashes = Json::array();
    do {
      hashes.push_back(hash_of(change.removed[i++].name, format_.hashes));
    } while (hashes.size() < batches.room() && i < change.removed.size() &&
             change.removed[i].tier == tier && change.removed[i].group == group);
    const std::size_t blocks = hashes.size();
    batches.add(removed_event(hashes, tier, format_.events, groups_, group));
    batches.count(blocks);
  }
  return batches.take();
}

}  // namespace kvhive
