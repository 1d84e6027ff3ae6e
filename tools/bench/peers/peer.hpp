#pragma once
// The interface of a store of blocks with 16-byte names, used by two processes: one process stores
// blocks, the other finds them.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tools/bench/shared_pool.hpp"

namespace kvhive::bench {

/// Blocks of a prompt. One request asks for this many.
inline constexpr std::size_t kBatch = 64;

/// The stored data: kBatch blocks per prompt. Each block begins with the low word of its name.
struct DataSet {
  std::vector<Prompt> prompts;
  std::size_t block_bytes = 0;

  std::size_t blocks() const { return prompts.size() * kBatch; }
  std::size_t bytes() const { return blocks() * block_bytes; }
};

/// A block's content, for storing one block after the other.
class Payload {
 public:
  explicit Payload(std::size_t bytes) : words_(bytes / sizeof(std::uint64_t), 0x5eed) {}
  const std::byte* of(Hash128 name) {
    words_[0] = name.low;
    return reinterpret_cast<const std::byte*>(words_.data());
  }

 private:
  std::vector<std::uint64_t> words_;
};

inline std::uint64_t first_word(const void* block) {
  return *static_cast<const volatile std::uint64_t*>(block);
}

class Peer {
 public:
  virtual ~Peer() = default;
  virtual std::string name() const = 0;

  /// Stores all blocks. Called in the storing process, which ends afterwards.
  virtual void store(const DataSet& data) = 0;
  /// Opens the store. Called in the finding process, after all blocks are stored.
  virtual void open() = 0;

  /// Finds a prompt's blocks, protects them from removal as far as this store can, and reads the
  /// first word of each. Returns the sum of these words.
  virtual std::uint64_t pin(const Prompt& prompt) = 0;
  /// Releases the blocks that were pinned last.
  virtual void unpin(const Prompt&) {}
};

/// \param directory  on tmpfs, used by this peer alone
std::unique_ptr<Peer> make_kvhive_peer(const SharedPool& pool);
std::unique_ptr<Peer> make_lmdb_peer(const std::filesystem::path& directory, const DataSet& data);
std::unique_ptr<Peer> make_boost_map_peer(const std::filesystem::path& directory,
                                          const DataSet& data);
std::unique_ptr<Peer> make_file_peer(const std::filesystem::path& directory, const DataSet& data);
std::unique_ptr<Peer> make_memcached_peer(const std::filesystem::path& directory,
                                          const DataSet& data);
std::unique_ptr<Peer> make_redis_peer(const std::filesystem::path& directory, const DataSet& data);

}  // namespace kvhive::bench
