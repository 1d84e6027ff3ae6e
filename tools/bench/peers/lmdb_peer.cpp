// LMDB without durability, on tmpfs. A get returns a pointer into the mapped file, which is valid
// until the read transaction ends. There are no reference counts: a long transaction keeps all old
// pages instead.

#include <lmdb.h>

#include <cstring>

#include "tools/bench/peers/peer.hpp"

namespace kvhive::bench {
namespace {

void check(int code) { KV_CHECK(code == 0, mdb_strerror(code)); }

class LmdbPeer final : public Peer {
 public:
  LmdbPeer(std::filesystem::path directory, const DataSet& data)
      : directory_(std::move(directory)),
        // A value needs at most one page more than its bytes; the tree itself is small.
        map_bytes_(data.bytes() + data.blocks() * 8192 + (std::size_t{64} << 20)) {}

  ~LmdbPeer() override {
    if (reading_ != nullptr) mdb_txn_abort(reading_);
    if (environment_ != nullptr) mdb_env_close(environment_);
  }

  std::string name() const override { return "LMDB get, zero-copy"; }

  void store(const DataSet& data) override {
    open_environment(MDB_NOSYNC | MDB_NOMETASYNC | MDB_WRITEMAP);
    Payload payload(data.block_bytes);
    for (const Prompt& prompt : data.prompts) {
      MDB_txn* writing = nullptr;
      check(mdb_txn_begin(environment_, nullptr, 0, &writing));
      MDB_dbi table;
      check(mdb_dbi_open(writing, nullptr, 0, &table));
      for (Hash128 name : prompt.chain) {
        MDB_val key{sizeof name, &name}, value{data.block_bytes, nullptr};
        check(mdb_put(writing, table, &key, &value, MDB_RESERVE));
        std::memcpy(value.mv_data, payload.of(name), data.block_bytes);
      }
      check(mdb_txn_commit(writing));
    }
    mdb_env_close(std::exchange(environment_, nullptr));
  }

  void open() override {
    open_environment(MDB_RDONLY);
    check(mdb_txn_begin(environment_, nullptr, MDB_RDONLY, &reading_));
    check(mdb_dbi_open(reading_, nullptr, 0, &table_));
    mdb_txn_reset(reading_);
  }

  std::uint64_t pin(const Prompt& prompt) override {
    check(mdb_txn_renew(reading_));
    std::uint64_t sum = 0;
    for (Hash128 name : prompt.chain) {
      MDB_val key{sizeof name, &name}, value;
      check(mdb_get(reading_, table_, &key, &value));
      sum += first_word(value.mv_data);
    }
    return sum;
  }

  void unpin(const Prompt&) override { mdb_txn_reset(reading_); }

 private:
  void open_environment(unsigned flags) {
    check(mdb_env_create(&environment_));
    check(mdb_env_set_mapsize(environment_, map_bytes_));
    check(mdb_env_open(environment_, directory_.c_str(), flags | MDB_NORDAHEAD, 0600));
  }

  std::filesystem::path directory_;
  std::size_t map_bytes_;
  MDB_env* environment_ = nullptr;
  MDB_txn* reading_ = nullptr;
  MDB_dbi table_{};
};

}  // namespace

std::unique_ptr<Peer> make_lmdb_peer(const std::filesystem::path& directory, const DataSet& data) {
  return std::make_unique<LmdbPeer>(directory, data);
}

}  // namespace kvhive::bench
