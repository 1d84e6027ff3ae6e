// A store that is easy to write: a hash map in Boost's managed memory, with Boost's mutex and
// reference counts. The mutex is taken once for a whole batch, which is its best case. (If a
// process is killed while it holds the mutex, the mutex stays locked for ever.)

#include <boost/interprocess/allocators/allocator.hpp>
#include <boost/interprocess/managed_mapped_file.hpp>
#include <boost/interprocess/sync/interprocess_mutex.hpp>
#include <boost/interprocess/sync/scoped_lock.hpp>
#include <boost/unordered_map.hpp>
#include <cstring>
#include <optional>

#include "tools/bench/peers/peer.hpp"

namespace kvhive::bench {
namespace {

namespace bip = boost::interprocess;

struct Entry {
  bip::offset_ptr<std::byte> block;
  std::uint32_t references;
};
struct HashOfHash {
  std::size_t operator()(const Hash128& hash) const { return hash.low; }
};
using Segment = bip::managed_mapped_file;
using EntryAllocator = bip::allocator<std::pair<const Hash128, Entry>, Segment::segment_manager>;
using Map =
    boost::unordered_map<Hash128, Entry, HashOfHash, std::equal_to<Hash128>, EntryAllocator>;
using Lock = bip::scoped_lock<bip::interprocess_mutex>;

class BoostMapPeer final : public Peer {
 public:
  BoostMapPeer(const std::filesystem::path& directory, const DataSet& data)
      : file_(directory / "map"),
        file_bytes_(data.bytes() + data.blocks() * 256 + (std::size_t{64} << 20)) {}

  std::string name() const override { return "Boost map, mutex, count"; }

  void store(const DataSet& data) override {
    segment_.emplace(bip::create_only, file_.c_str(), file_bytes_);
    auto* mutex = segment_->construct<bip::interprocess_mutex>("mutex")();
    auto* map =
        segment_->construct<Map>("map")(data.blocks(), HashOfHash(), std::equal_to<Hash128>(),
                                        EntryAllocator(segment_->get_segment_manager()));
    Payload payload(data.block_bytes);
    for (const Prompt& prompt : data.prompts)
      for (const Hash128 name : prompt.chain) {
        const Lock lock(*mutex);
        auto* block = static_cast<std::byte*>(segment_->allocate(data.block_bytes));
        std::memcpy(block, payload.of(name), data.block_bytes);
        map->emplace(name, Entry{block, 0});
      }
    segment_.reset();
  }

  void open() override {
    segment_.emplace(bip::open_only, file_.c_str());
    mutex_ = segment_->find<bip::interprocess_mutex>("mutex").first;
    map_ = segment_->find<Map>("map").first;
  }

  std::uint64_t pin(const Prompt& prompt) override {
    std::array<const std::byte*, kBatch> blocks;
    {
      const Lock lock(*mutex_);
      for (std::size_t i = 0; i < kBatch; ++i) {
        Entry& entry = map_->find(prompt.chain[i])->second;
        ++entry.references;
        blocks[i] = entry.block.get();
      }
    }
    std::uint64_t sum = 0;
    for (const std::byte* block : blocks) sum += first_word(block);
    return sum;
  }

  void unpin(const Prompt& prompt) override {
    const Lock lock(*mutex_);
    for (const Hash128& name : prompt.chain) --map_->find(name)->second.references;
  }

 private:
  std::filesystem::path file_;
  std::size_t file_bytes_;
  std::optional<Segment> segment_;
  bip::interprocess_mutex* mutex_ = nullptr;
  Map* map_ = nullptr;
};

}  // namespace

std::unique_ptr<Peer> make_boost_map_peer(const std::filesystem::path& directory,
                                          const DataSet& data) {
  return std::make_unique<BoostMapPeer>(directory, data);
}

}  // namespace kvhive::bench
