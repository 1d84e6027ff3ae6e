// Clients that do not read, because they are stopped or dead, do not slow other clients down.

#include <array>
#include <atomic>

#include "tests/support/child_process.hpp"
#include "tests/support/shared_value.hpp"
#include "tests/tools/daemon.hpp"
#include "tests/tools/footprint.hpp"

namespace kvhive::testing {
namespace {

constexpr std::size_t kClients = 8;
const std::string kStalledPrompt = "And it came to pass";

/// Tokens each client has read.
using Counters = std::array<std::atomic<std::uint64_t>, kClients>;

TEST(StalledClients, AStoppedClientDoesNotStopTheOtherSeven) {
  const Daemon daemon({"--kv-cache-memory-bytes", "32M"});
  const SharedValue<Counters> read;
  std::vector<ChildProcess> clients;
  for (std::size_t i = 0; i < kClients; ++i)
    clients.emplace_back([&daemon, &read, i] {
      Client client = daemon.connect(0, kLeastChannelBytes);
      while (client
                 .generate(request_of(kStalledPrompt, 200),
                           [&](const Progress& news) { (*read)[i] += news.tokens.size(); })
                 .has_value()) {
      }
    });
  /// Waits until each client but the stopped one has read `more` tokens more.
  const auto all_go_on = [&](std::uint64_t more, std::size_t stopped) {
    std::array<std::uint64_t, kClients> from{};
    for (std::size_t i = 0; i < kClients; ++i) from[i] = (*read)[i];
    return eventually(
        [&] {
          for (std::size_t i = 0; i < kClients; ++i)
            if (i != stopped && (*read)[i] < from[i] + more) return false;
          return true;
        },
        kHang);
  };
  ASSERT_TRUE(all_go_on(20, kClients));
  for (const std::size_t stopped : {std::size_t{0}, kClients - 1}) {
    clients[stopped].signal(SIGSTOP);
    EXPECT_TRUE(eventually([&] { return state_of(clients[stopped].pid()) == 'T'; }, kHang));
    const std::uint64_t until_then = (*read)[stopped];
    // 250 tokens are more than one request has: the stopped client's request has been answered.
    EXPECT_TRUE(all_go_on(250, stopped));
    EXPECT_EQ((*read)[stopped], until_then);
    clients[stopped].signal(SIGCONT);
    EXPECT_TRUE(all_go_on(250, kClients))
        << "the client does not go on with the tokens written meanwhile";
  }
  clients.clear();
  EXPECT_TRUE(eventually([&] { return daemon.status()["clients"].empty(); }, kHang));
  EXPECT_EQ(daemon.status()["engines"][0]["restarts"], 0);
  EXPECT_TRUE(daemon.fsck_is_clean());
}

TEST(StalledClients, AClientKilledWithAllSlotsUnreadLeavesNothing) {
  const Daemon daemon({"--kv-cache-memory-bytes", "32M"});
  const SharedValue<std::atomic<std::uint32_t>> submitted;
  ChildProcess client([&] {
    Client silent = daemon.connect(0);
    while (silent.submit(request_of(kStalledPrompt, 4)).has_value()) ++*submitted;
    pause();  // never reads: every log is full, every slot finished
  });
  const auto all_are_answered = [&] {
    const Json engine = daemon.engine(0);
    return *submitted == kChannelSlots && engine["running"] == 0 && engine["waiting"] == 0 &&
           engine["allocated_blocks"] == kChannelSlots;  // each request needs one block
  };
  EXPECT_TRUE(eventually(all_are_answered, kHang)) << daemon.engine(0);
  EXPECT_EQ(daemon.connect(0).generate(request_of(kStalledPrompt, 32))->tokens.size(), 32u);
  EXPECT_TRUE(client.kill_and_wait());
  EXPECT_TRUE(eventually(
      [&] {
        const pid_t engine = daemon.status()["engines"][0]["pid"];
        return daemon.status()["clients"].empty() && !has_memory_object(engine, "answers") &&
               !has_memory_object(daemon.pid(), "requests");
      },
      kHang));
  EXPECT_EQ(daemon.connect(0).generate(request_of(kStalledPrompt, 32))->tokens.size(), 32u);
  EXPECT_EQ(daemon.status()["engines"][0]["restarts"], 0);
  EXPECT_TRUE(daemon.fsck_is_clean());
}

}  // namespace
}  // namespace kvhive::testing
