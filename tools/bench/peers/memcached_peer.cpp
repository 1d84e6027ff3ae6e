// memcached: one `get` of the text protocol for the whole batch; the blocks are received directly
// at their destination.

#include <unistd.h>

#include <optional>

#include "tools/bench/peers/hex_name.hpp"
#include "tools/bench/peers/local_server.hpp"
#include "tools/bench/peers/peer.hpp"

namespace kvhive::bench {
namespace {

class MemcachedPeer final : public Peer {
 public:
  MemcachedPeer(const std::filesystem::path& directory, const DataSet& data)
      : socket_(directory / "socket"),
        block_bytes_(data.block_bytes),
        server_({"memcached", "-s", socket_, "-t", "2", "-I", "8m", "-u", "root", "-m",
                 std::to_string(2 * (data.bytes() >> 20) + 256)},
                socket_) {}

  std::string name() const override { return "memcached get"; }

  void store(const DataSet& data) override {
    LineSocket client(socket_);
    Payload payload(block_bytes_);
    for (const Prompt& prompt : data.prompts)
      for (const Hash128 name : prompt.chain) {
        client.send("set " + std::string(HexName(name).view()) + " 0 0 " +
                    std::to_string(block_bytes_) + "\r\n");
        client.send({reinterpret_cast<const char*>(payload.of(name)), block_bytes_});
        client.send("\r\n");
        KV_CHECK(client.line() == "STORED");
      }
  }

  void open() override {
    client_.emplace(socket_);
    received_.resize(kBatch * block_bytes_);
  }

  std::uint64_t pin(const Prompt& prompt) override {
    request_ = "get";
    for (const Hash128 name : prompt.chain) request_.append(" ").append(HexName(name).view());
    request_ += "\r\n";
    client_->send(request_);
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < kBatch; ++i) {
      KV_CHECK(client_->line().starts_with("VALUE"));
      std::byte* block = received_.data() + i * block_bytes_;
      client_->body(block, block_bytes_);
      sum += first_word(block);
    }
    KV_CHECK(client_->line() == "END");
    return sum;
  }

 private:
  std::filesystem::path socket_;
  std::size_t block_bytes_;
  LocalServer server_;
  std::optional<LineSocket> client_;
  std::string request_;
  std::vector<std::byte> received_;
};

}  // namespace

std::unique_ptr<Peer> make_memcached_peer(const std::filesystem::path& directory,
                                          const DataSet& data) {
  return std::make_unique<MemcachedPeer>(directory, data);
}

}  // namespace kvhive::bench
