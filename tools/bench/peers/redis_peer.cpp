// Redis without persistence: one MGET for the whole batch; the blocks are received directly at
// their destination.

#include <optional>

#include "tools/bench/peers/local_server.hpp"
#include "tools/bench/peers/peer.hpp"

namespace kvhive::bench {
namespace {

std::string_view bytes_of(const Hash128& name) {
  return {reinterpret_cast<const char*>(&name), sizeof name};
}

class RedisPeer final : public Peer {
 public:
  RedisPeer(const std::filesystem::path& directory, const DataSet& data)
      : socket_(directory / "socket"),
        block_bytes_(data.block_bytes),
        server_({"redis-server", "--port", "0", "--unixsocket", socket_, "--unixsocketperm", "700",
                 "--save", "", "--appendonly", "no", "--dir", directory},
                socket_) {}

  std::string name() const override { return "Redis MGET"; }

  void store(const DataSet& data) override {
    LineSocket client(socket_);
    Payload payload(block_bytes_);
    for (const Prompt& prompt : data.prompts)
      for (const Hash128& name : prompt.chain) {
        client.send("*3\r\n$3\r\nSET\r\n$16\r\n" + std::string(bytes_of(name)) + "\r\n$" +
                    std::to_string(block_bytes_) + "\r\n");
        client.send({reinterpret_cast<const char*>(payload.of(name)), block_bytes_});
        client.send("\r\n");
        KV_CHECK(client.line() == "+OK");
      }
  }

  void open() override {
    client_.emplace(socket_);
    received_.resize(kBatch * block_bytes_);
    block_header_ = "$" + std::to_string(block_bytes_);
  }

  std::uint64_t pin(const Prompt& prompt) override {
    request_ = "*" + std::to_string(kBatch + 1) + "\r\n$4\r\nMGET\r\n";
    for (const Hash128& name : prompt.chain)
      request_.append("$16\r\n").append(bytes_of(name)).append("\r\n");
    client_->send(request_);
    KV_CHECK(client_->line() == "*" + std::to_string(kBatch));
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < kBatch; ++i) {
      KV_CHECK(client_->line() == block_header_);
      std::byte* block = received_.data() + i * block_bytes_;
      client_->body(block, block_bytes_);
      sum += first_word(block);
    }
    return sum;
  }

 private:
  std::filesystem::path socket_;
  std::size_t block_bytes_;
  LocalServer server_;
  std::optional<LineSocket> client_;
  std::string request_;
  std::string block_header_;
  std::vector<std::byte> received_;
};

}  // namespace

std::unique_ptr<Peer> make_redis_peer(const std::filesystem::path& directory, const DataSet& data) {
  return std::make_unique<RedisPeer>(directory, data);
}

}  // namespace kvhive::bench
