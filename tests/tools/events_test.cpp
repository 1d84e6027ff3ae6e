// `kvhive events` and `kvhive watch` beside a real daemon whose processes are killed.

#include <gmock/gmock.h>
#include <poll.h>

#include <map>
#include <optional>
#include <set>
#include <zmq.hpp>

#include "pool/block_view.hpp"
#include "tests/support/demo_adapter.hpp"
#include "tests/tools/daemon.hpp"
#include "tests/tools/small_model.hpp"

namespace kvhive::testing {
namespace {

using ::testing::HasSubstr;

/// A command that runs beside the test, and what it prints.
class Beside {
 public:
  explicit Beside(std::vector<std::string> arguments) {
    int out[2];
    KV_CHECK(pipe2(out, O_CLOEXEC) == 0);
    pid_ = spawn(program("kvhive"), arguments, out[1]);
    close(out[1]);
    out_ = out[0];
  }
  Beside(const Beside&) = delete;
  Beside& operator=(const Beside&) = delete;
  ~Beside() {
    if (pid_ != 0) {
      signal_process(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    close(out_);
  }
  /// The next line; empty after thirty seconds without one, or at the end.
  std::string line() {
    for (;;) {
      if (const auto end = text_.find('\n'); end != std::string::npos) {
        const std::string line = text_.substr(0, end);
        text_.erase(0, end + 1);
        return line;
      }
      pollfd item{out_, POLLIN, 0};
      char bytes[4096];
      if (poll(&item, 1, 30'000) <= 0) return {};
      const ssize_t got = read(out_, bytes, sizeof bytes);
      if (got <= 0) return {};
      text_.append(bytes, static_cast<std::size_t>(got));
    }
  }
  int terminate() {
    signal_process(pid_, SIGTERM);
    int status = 0;
    waitpid(std::exchange(pid_, 0), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  pid_t pid_ = 0;
  int out_ = -1;
  std::string text_;
};

using Key = std::pair<std::uint64_t, std::string>;  ///< a block's name, and its medium

/// A subscriber that asks for what it has missed, as vLLM's do.
class Subscriber {
 public:
  Subscriber(const std::string& events, const std::string& replays) : replays_(replays) {
    live_.set(zmq::sockopt::subscribe, "");
    live_.set(zmq::sockopt::linger, 0);
    live_.connect(events);
  }

  /// Applies what has come; asks for a replay after a gap.
  void follow() {
    for (;;) {
      zmq::pollitem_t item{live_.handle(), 0, ZMQ_POLLIN, 0};
      if (zmq::poll(&item, 1, std::chrono::milliseconds(20)) == 0) break;
      const auto frames = receive(live_);
      const std::uint64_t number = number_in(frames.at(1));
      if (number < next_) continue;
      if (number > next_) replay();
      if (number < next_) continue;
      apply(frames[2].to_string());
      next_ = number + 1;
    }
    if (next_ == 0) replay();
  }
  void replay() {
    zmq::socket_t asker(context_, ZMQ_DEALER);
    asker.set(zmq::sockopt::linger, 0);
    asker.set(zmq::sockopt::rcvtimeo, 10'000);
    asker.connect(replays_);
    std::string sequence;
    for (int shift = 56; shift >= 0; shift -= 8)
      sequence.push_back(static_cast<char>(next_ >> shift));
    asker.send(zmq::message_t(), zmq::send_flags::sndmore);
    asker.send(zmq::buffer(sequence), zmq::send_flags::none);
    for (;;) {
      const auto frames = receive(asker);
      const std::uint64_t number = number_in(frames.at(2));
      if (number == ~0ull) return;
      apply(frames[3].to_string());
      next_ = number + 1;
    }
  }

  const std::map<Key, std::vector<TokenId>>& blocks() const { return blocks_; }
  int clears() const { return clears_; }
  /// What events of stored blocks have said of adapters, as JSON.
  const std::set<std::string>& adapters() const { return adapters_; }

 private:
  static std::vector<zmq::message_t> receive(zmq::socket_t& socket) {
    std::vector<zmq::message_t> frames;
    do {
      zmq::message_t frame;
      KV_CHECK(socket.recv(frame).has_value());
      frames.push_back(std::move(frame));
    } while (frames.back().more());
    return frames;
  }
  static std::uint64_t number_in(const zmq::message_t& bytes) {
    std::uint64_t number = 0;
    for (std::size_t i = 0; i < bytes.size(); ++i)
      number = number << 8 | bytes.data<unsigned char>()[i];
    return number;
  }
  void apply(const std::string& bytes) {
    const Json batch = Json::from_msgpack(bytes);
    for (const Json& event : batch.at(1)) {
      const std::string type = event.at("type");
      if (type == "AllBlocksCleared") {
        blocks_.clear();
        ++clears_;
        continue;
      }
      const auto hashes = event.at("block_hashes").get<std::vector<std::uint64_t>>();
      const std::string medium = event.at("medium");
      if (type == "BlockRemoved") {
        for (const std::uint64_t hash : hashes)
          EXPECT_EQ(blocks_.erase({hash, medium}), 1u) << "was never told";
        continue;
      }
      const auto tokens = event.at("token_ids").get<std::vector<TokenId>>();
      const std::size_t each = event.at("block_size");
      ASSERT_EQ(tokens.size(), each * hashes.size());
      adapters_.insert(event.at("lora_name").dump());
      for (std::size_t i = 0; i < hashes.size(); ++i)
        blocks_[{hashes[i], medium}].assign(
            tokens.begin() + static_cast<std::ptrdiff_t>(i * each),
            tokens.begin() + static_cast<std::ptrdiff_t>((i + 1) * each));
    }
  }

  zmq::context_t context_;
  std::string replays_;
  zmq::socket_t live_{context_, ZMQ_SUB};
  std::uint64_t next_ = 0;
  std::map<Key, std::vector<TokenId>> blocks_;
  int clears_ = 0;
  std::set<std::string> adapters_;
};

/// What is in the pool, read block by block by other means: by the chain of uids.
std::map<Key, std::vector<TokenId>> content_of(const PoolMemory& memory) {
  const PoolGeometry& geometry = memory.geometry();
  std::map<std::uint64_t, BlockId> by_uid;
  const auto is_ready = [&](BlockId block) { return memory.block(block).word().is_ready(); };
  for (std::uint32_t b = 0; b < geometry.total_blocks(); ++b)
    if (is_ready(BlockId{b})) by_uid.emplace(memory.block(BlockId{b}).uid(), BlockId{b});
  std::map<Key, std::vector<TokenId>> content;
  for (std::uint32_t b = 0; b < geometry.total_blocks(); ++b) {
    const BlockId block{b};
    if (!is_ready(block)) continue;
    std::uint64_t parent = memory.block(block).parent_uid();
    while ((parent & kRootUid) == 0) {
      const auto found = by_uid.find(parent);
      if (found == by_uid.end()) break;
      parent = memory.block(found->second).parent_uid();
    }
    if ((parent & kRootUid) == 0) continue;  // a prompt does not get there
    content[{memory.block(block).name().low,
             memory.tier_of(block) == Tier::device ? "GPU" : "CPU"}] =
        memory.tokens_of(block).read(geometry.models[0].tokens_per_block);
  }
  return content;
}

/// `kvhive events` of a daemon, on ports that the kernel chooses.
struct Events {
  explicit Events(const Daemon& daemon, const std::vector<std::string>& more = {})
      : publisher(flags(daemon, more)) {
    const std::string line = publisher.line();  // events on URL, replays on URL
    const std::size_t comma = line.find(", replays on ");
    KV_CHECK(line.rfind("events on ", 0) == 0 && comma != std::string::npos, line);
    endpoint = line.substr(10, comma - 10);
    replays = line.substr(comma + 13);
  }
  static std::vector<std::string> flags(const Daemon& daemon,
                                        const std::vector<std::string>& more) {
    std::vector<std::string> all = {"events",
                                    "--socket",
                                    daemon.socket(),
                                    "--endpoint",
                                    "tcp://127.0.0.1:*",
                                    "--replay-endpoint",
                                    "tcp://127.0.0.1:*",
                                    "--interval",
                                    "0.01"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  Beside publisher;
  std::string endpoint, replays;
};

std::string text_of(int request) { return passage(std::size_t(request % 40) * 97, 900); }

TEST(Events, ASubscriberHasThePoolsContentWhateverIsKilled) {
  const Daemon daemon({"--engines", "2", "--kv-cache-memory-bytes", "2M", "--swap-space", "1M"});
  const Events events(daemon);
  Subscriber subscriber(events.endpoint, events.replays);
  const PoolMemory pool = daemon.pool();
  const auto is_equal = [&] {
    subscriber.follow();
    return subscriber.blocks() == content_of(pool);
  };
  std::vector<Client> clients;
  clients.push_back(daemon.connect());
  for (int round = 0; round < 6; ++round) {
    std::vector<GenerateRequest> requests;
    for (int i = 0; i < 12; ++i) requests.push_back(request_of(text_of(round * 7 + i), 8));
    if (round == 2) {
      const Json engine = daemon.engine(0);
      signal_process(engine["pid"].get<pid_t>(), SIGKILL);
    }
    if (round == 4) daemon.kill_keeper();
    generate_all(clients, requests);
    EXPECT_TRUE(eventually(is_equal)) << "round " << round << ": " << subscriber.blocks().size()
                                      << " told, " << content_of(pool).size() << " there";
  }
  EXPECT_GT(subscriber.blocks().size(), 20u);
  EXPECT_GT(daemon.stat()["evicted_blocks"].get<int>(), 0) << "the pool was too large";
  EXPECT_EQ(subscriber.clears(), 1) << "at the start only: the pool has lived on";

  Subscriber late(events.endpoint, events.replays);
  late.replay();
  EXPECT_EQ(late.blocks(), subscriber.blocks());
}

TEST(Events, ADaemonsEndClearsAllAndTheNextIsFollowed) {
  std::optional<Daemon> daemon(std::in_place);
  const std::string socket = daemon->socket();
  const Events events(*daemon);
  Subscriber subscriber(events.endpoint, events.replays);
  std::vector<Client> clients;
  clients.push_back(daemon->connect());
  generate_all(clients, {request_of(text_of(0), 8)});
  EXPECT_TRUE(eventually([&] {
    subscriber.follow();
    return !subscriber.blocks().empty();
  }));
  clients.clear();
  daemon->stop();
  EXPECT_TRUE(eventually([&] {
    subscriber.follow();
    return subscriber.blocks().empty() && subscriber.clears() >= 2;
  }));
  const pid_t next =
      spawn(program("kvhived"), {"--model", kDemoModel, "--socket", socket, "--threads", "1",
                                 "--kv-cache-memory-bytes", "8M", "--log-level", "error"});
  std::optional<Client> client;
  ASSERT_TRUE(eventually([&] {
    auto connected = Client::connect(client_options(socket));
    if (connected) client = std::move(*connected);
    return client.has_value();
  }));
  EXPECT_TRUE(client->generate(request_of(text_of(1), 8)));
  EXPECT_TRUE(eventually([&] {
    subscriber.follow();
    return !subscriber.blocks().empty();
  }));
  EXPECT_EQ(run("kvhive", {"stop", "--socket", socket}).exit_code, 0);
  waitpid(next, nullptr, 0);
}

TEST(Events, TheEndIsQuietAndWrongEndpointsAreNamed) {
  const Daemon daemon;
  Events events(daemon);
  EXPECT_EQ(events.publisher.terminate(), 0);
  const CommandResult wrong = daemon.cli({"events", "--endpoint", "udp://nowhere"});
  EXPECT_EQ(wrong.exit_code, 1);
  EXPECT_THAT(wrong.err, HasSubstr("--endpoint 'udp://nowhere'"));
  EXPECT_THAT(run("kvhive", {"events", "--socket", "/tmp/kvhive-none"}).err,
              HasSubstr("no daemon listens on /tmp/kvhive-none"));
}

/// Reads lines until one is the event that is waited for; null at the end.
Json wait_for(Beside& watch, const std::string& event) {
  for (std::string line = watch.line(); !line.empty(); line = watch.line()) {
    const Json told = Json::parse(line);
    EXPECT_TRUE(told.contains("time")) << line;
    if (told.at("event") == event) return told;
  }
  return {};
}

TEST(Watch, TellsOfEnginesClientsAndBlocks) {
  const Daemon daemon;
  Beside watch({"watch", "--socket", daemon.socket(), "--interval", "0.02", "--blocks"});
  EXPECT_EQ(wait_for(watch, "daemon")["state"], "answering");
  EXPECT_EQ(wait_for(watch, "engine_joined")["engine"], 0);
  std::vector<Client> clients;
  clients.push_back(daemon.connect());
  EXPECT_EQ(wait_for(watch, "client_connected")["pid"], getpid());
  generate_all(clients, {request_of(text_of(0), 8)});
  const Json stored = wait_for(watch, "block_stored");
  EXPECT_EQ(stored["tier"], "device");
  EXPECT_EQ(stored["parent"], nullptr);
  EXPECT_FALSE(stored["tokens"].empty());
  const auto victim = daemon.engine(1)["pid"].get<pid_t>();
  signal_process(victim, SIGKILL);
  EXPECT_EQ(wait_for(watch, "engine_ended")["pid"], victim);
  const Json back = wait_for(watch, "engine_serves_again");
  EXPECT_NE(back["pid"], victim);
  clients.clear();
  EXPECT_EQ(wait_for(watch, "client_left")["pid"], getpid());
}

TEST(Watch, TellsThatAnotherKeeperHasTakenOver) {
  const Daemon daemon;
  Beside watch({"watch", "--socket", daemon.socket(), "--interval", "0.02"});
  const pid_t first = daemon.keeper();
  EXPECT_EQ(wait_for(watch, "daemon")["keeper"], first);
  daemon.kill_keeper();
  Json told = wait_for(watch, "daemon");
  while (told["state"] != "answering") told = wait_for(watch, "daemon");
  EXPECT_EQ(told["keeper"], daemon.keeper());
  EXPECT_EQ(told["is_new_pool"], false);
}

/// Names, also of a domain that has just come; an adapter's, unless a salt hides it.
TEST(Watch, BlocksNameTheirDomainAndAdapter) {
  const DemoAdapter poet(1);
  const Daemon daemon({"--kv-cache-memory-bytes", "16M", "--domains", "red=4242", "--lora-modules",
                       "poet=" + poet.path()});
  Beside watch({"watch", "--socket", daemon.socket(), "--interval", "0.02", "--blocks"});
  ClientOptions options = client_options(daemon.socket());
  options.domain = "red";
  Client client = *Client::connect(options);
  GenerateRequest request = request_of(text_of(0), 1);
  request.adapter = "poet";
  EXPECT_EQ(client.generate(request)->reason, Finish::length);
  const Json first = wait_for(watch, "block_stored"), second = wait_for(watch, "block_stored");
  EXPECT_EQ(first["domain"], "red");
  EXPECT_EQ(first["adapter"], "poet");
  EXPECT_EQ(second["depth"], 1);
  EXPECT_EQ(second["adapter"], "poet") << "as the first block of its sequence";
  const auto stored_by = [&](const GenerateRequest& asked) {
    EXPECT_EQ(client.generate(asked)->reason, Finish::length);
    Json told;
    do told = wait_for(watch, "block_stored");
    while (told["depth"] != 0);
    return told;
  };
  request.cache_salt = "mine";
  EXPECT_EQ(stored_by(request)["adapter"], nullptr);
  request.adapter.clear();
  request.cache_salt.clear();
  EXPECT_EQ(stored_by(request)["adapter"], nullptr);

  const Events events(daemon);
  Subscriber subscriber(events.endpoint, events.replays);
  EXPECT_TRUE(eventually([&] {
    subscriber.follow();
    return subscriber.adapters().size() == 2;
  }));
  EXPECT_THAT(subscriber.adapters(), ::testing::UnorderedElementsAre("\"poet\"", "null"));
}

/// The adapters of all models: those of the second are not the first's.
TEST(Watch, BlocksOfEachModelNameItsAdapter) {
  const SmallModel small;
  const DemoAdapter poet(1), clerk(2, 2);
  const Daemon daemon({"--model", "demo=" + kDemoModel, "--model", "small=" + small.path(),
                       "--kv-cache-memory-bytes", "16M", "--lora-modules",
                       "small:clerk=" + clerk.path() + ",demo:poet=" + poet.path()});
  Beside watch({"watch", "--socket", daemon.socket(), "--interval", "0.02", "--blocks"});
  for (const auto& [model, adapter] : {std::pair{"demo", "poet"}, {"small", "clerk"}}) {
    ClientOptions options = client_options(daemon.socket());
    options.model = model;
    GenerateRequest request = request_of(text_of(0), 1);
    request.adapter = adapter;
    EXPECT_EQ(Client::connect(options)->generate(request)->reason, Finish::length);
    Json told;
    do told = wait_for(watch, "block_stored");
    while (told["depth"] != 0);
    EXPECT_EQ(told["adapter"], adapter);
  }
  const Events events(daemon, {"--model", "small"});
  Subscriber subscriber(events.endpoint, events.replays);
  EXPECT_TRUE(eventually([&] {
    subscriber.follow();
    return !subscriber.adapters().empty();
  }));
  EXPECT_THAT(subscriber.adapters(), ::testing::ElementsAre("\"clerk\""));
}

TEST(Watch, EndsAfterItsLooksAndWithItsReader) {
  const Daemon daemon;
  const CommandResult once = daemon.cli({"watch", "--count", "1"});
  EXPECT_EQ(once.exit_code, 0) << once.err;
  EXPECT_THAT(once.out, HasSubstr(R"("event":"engine_joined")"));
  EXPECT_THAT(run("kvhive", {"watch", "--interval", "0"}).err, HasSubstr("--interval"));
}

}  // namespace
}  // namespace kvhive::testing
