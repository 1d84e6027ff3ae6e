#pragma once
// Which contents a prompt can find in the pool, kept up with the pool by reading it. Nobody tells:
// what processes publish and evict is seen in the block descriptors, so no engine works more for
// it, and a process that is killed in the middle of its work leaves no event out.
//
// A content can be found as long as all contents before it can, in any tier: a match goes from
// block to block, and by the parent's uid, which is never given twice. Contents behind a gap are
// therefore not in the pool as far as a prompt is concerned, and are not told of. In a cache group
// that is not of full attention, contents have no parents, and each can be found by itself. What
// is cached before the prefix cache is reset is found no more, and told as removed.

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "pool/pool_memory.hpp"

namespace kvhive {

/// A content that can be found in a tier now.
struct StoredContent {
  Hash128 name;
  /// None = it begins a sequence, or is of a group in which contents are not chained.
  std::optional<Hash128> parent;
  Tier tier = Tier::device;
  std::uint32_t depth = 0;  ///< blocks before it
  DomainId domain;
  GroupId group;
  ExtraKey extra = kNoExtraKey;
  /// The extra key of the sequence's first block, which names adapter and salt. In a group in which
  /// contents are not chained, only first blocks have it.
  ExtraKey start = kNoExtraKey;
  std::vector<TokenId> tokens;
};

/// A content that can be found in a tier no more.
struct RemovedContent {
  Hash128 name;
  Tier tier = Tier::device;
  GroupId group;
};

struct ContentChange {
  std::vector<StoredContent> stored;    ///< parents before their children
  std::vector<RemovedContent> removed;  ///< children before their parents

  bool is_empty() const { return stored.empty() && removed.empty(); }
  /// The domain with the highest number among what was stored: the newest.
  DomainId newest_domain() const;
};

class PoolContent {
 public:
  /// Knows of nothing yet: the first read() tells of all that is in the pool.
  /// \param memory  with tokens; outlives this object
  /// \param model   of whose blocks it tells; nothing = of all models'
  explicit PoolContent(const PoolMemory& memory, std::optional<ModelId> model = {});

  /// Reads every block's descriptor, and returns what has changed since the last call. What came
  /// and went in between is not told. Contents that one process publishes while this one reads may
  /// be told next time. Waits for nobody.
  [[nodiscard]] ContentChange read();

  /// All that read() has told of and not taken back.
  [[nodiscard]] std::vector<StoredContent> all() const;

 private:
  struct Hasher {
    std::size_t operator()(const Hash128& name) const { return name.low; }
  };
  using Uid = std::uint64_t;

  /// What block b has, as far as it is known. uid 0 = nothing that can be found.
  struct Sighting {
    Uid uid = 0;
    std::uint64_t serial = 0;
  };
  struct Content {
    Hash128 name;
    Uid parent = 0;
    std::uint32_t depth = 0;
    DomainId domain;
    GroupId group;
    ExtraKey extra = kNoExtraKey;
    ExtraKey start = kNoExtraKey;  ///< known as soon as all contents before it are
    std::vector<TokenId> tokens;
    std::array<std::uint32_t, kTiers> copies{};
    bool is_found = false;  ///< all contents before it are there
  };
  /// What has been told of a name. Two contents have one name if two processes published equal
  /// content at once.
  struct Listing {
    std::vector<Uid> found;  ///< contents of this name that can be found
    std::array<bool, kTiers> is_told{};
  };

  void follow_resets();
  void look_at(BlockId block);
  void add_copy(Uid uid, Tier tier, Content&& content);
  void drop_copy(Uid uid, Tier tier);
  void set_found(Uid uid, bool is_found);
  bool has_found_parent(const Content& content) const;
  /// A content of this listing with a copy in the tier; null = there is none.
  const Content* in_tier(const Listing& listing, Tier tier) const;
  StoredContent described(const Content& content, Tier tier) const;

  const PoolMemory& memory_;
  std::optional<ModelId> model_;
  Resets resets_{};                  ///< of the prefix cache, as far as it is told
  std::vector<Sighting> sightings_;  ///< by block
  std::unordered_map<Uid, Content> contents_;
  std::unordered_map<Uid, std::unordered_set<Uid>> children_;  ///< but those of the roots
  std::unordered_map<Hash128, Listing, Hasher> listings_;
  struct Touched {
    std::uint32_t depth = 0;
    GroupId group;
  };
  std::unordered_map<Hash128, Touched, Hasher> touched_;  ///< since the last read
};

}  // namespace kvhive
