// A store with one file per block on tmpfs, in 256 directories. Pin opens and maps the file, unpin
// unmaps it.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <fstream>

#include "tools/bench/peers/hex_name.hpp"
#include "tools/bench/peers/peer.hpp"

namespace kvhive::bench {
namespace {

class FilePeer final : public Peer {
 public:
  FilePeer(std::filesystem::path directory, const DataSet& data)
      : directory_(std::move(directory)), block_bytes_(data.block_bytes) {}

  std::string name() const override { return "file, open and mmap"; }

  void store(const DataSet& data) override {
    Payload payload(block_bytes_);
    for (const Prompt& prompt : data.prompts)
      for (const Hash128 name : prompt.chain) {
        const std::filesystem::path file = path_of(name);
        std::filesystem::create_directory(file.parent_path());
        std::ofstream(file, std::ios::binary)
            .write(reinterpret_cast<const char*>(payload.of(name)),
                   static_cast<std::streamsize>(block_bytes_));
      }
  }

  void open() override {}

  std::uint64_t pin(const Prompt& prompt) override {
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < kBatch; ++i) {
      const int file = ::open(path_of(prompt.chain[i]).c_str(), O_RDONLY | O_CLOEXEC);
      KV_CHECK(file >= 0);
      maps_[i] = mmap(nullptr, block_bytes_, PROT_READ, MAP_SHARED, file, 0);
      KV_CHECK(maps_[i] != MAP_FAILED);
      close(file);
      sum += first_word(maps_[i]);
    }
    return sum;
  }

  void unpin(const Prompt&) override {
    for (void* map : maps_) munmap(map, block_bytes_);
  }

 private:
  std::string path_of(Hash128 name) const {
    const HexName hex(name);
    return directory_.native() + "/" + std::string(hex.view().substr(0, 2)) + "/" +
           std::string(hex.view());
  }

  std::filesystem::path directory_;
  std::size_t block_bytes_;
  std::array<void*, kBatch> maps_{};
};

}  // namespace

std::unique_ptr<Peer> make_file_peer(const std::filesystem::path& directory, const DataSet& data) {
  return std::make_unique<FilePeer>(directory, data);
}

}  // namespace kvhive::bench
