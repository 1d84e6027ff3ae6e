// Systems with too few resources: ulimit, cgroups, tmpfs, descriptors, process slots. Each start
// ends with "ready" or with an error message, and a daemon that runs goes on.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include "base/check.hpp"
#include "pool/pool_layout.hpp"
#include "tests/support/cgroup.hpp"
#include "tests/support/child_process.hpp"
#include "tests/support/namespaces.hpp"
#include "tests/support/sanitizers.hpp"
#include "tests/tools/footprint.hpp"
#include "tests/tools/start_attempt.hpp"

namespace kvhive::testing {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t kMiB = std::size_t{1} << 20;
/// The step through a matrix of cases. All cases take minutes (`make siege`); a usual test run
/// takes every `of_a_dose`-th one.
int stride(int of_a_dose) { return std::getenv("KVHIVE_SIEGE") != nullptr ? 1 : of_a_dose; }

BeforeExec limited(__rlimit_resource resource, rlim_t most) {
  return [=] {
    const rlimit limit{most, most};
    if (setrlimit(resource, &limit) != 0) _exit(126);
  };
}

GenerateRequest small_request(std::uint32_t max_tokens = 4) {
  return request_of("In the beginning", max_tokens);
}

/// Checks that a daemon that says ready answers a request.
void expect_service(const StartAttempt& daemon) {
  auto client = Client::connect(client_options(daemon.socket(), kAnyEngine, kLeastChannelBytes));
  ASSERT_TRUE(client.has_value()) << client.error().text;
  const auto result = client->generate(small_request());
  ASSERT_TRUE(result.has_value()) << result.error().text;
  EXPECT_EQ(result->tokens.size(), 4u) << result->error.text;
}

// -- ulimit ---------------------------------------------------------------------------------------

TEST(Limits, WithAnyDescriptorLimitAStartWorksOrSaysWhyNot) {
  int started = 0, refused = 0;
  // UBSan opens pipes of its own, two for each thread that it looks at an object in.
  for (int most = kUnderSanitizer ? 16 : 8; most <= 72; most += 2 * stride(8)) {
    SCOPED_TRACE(most);
    const StartAttempt daemon(kSmallPool, limited(RLIMIT_NOFILE, static_cast<rlim_t>(most)));
    if (daemon.is_ready()) {
      expect_service(daemon);
      ++started;
    } else {
      EXPECT_THAT(daemon.words(), HasSubstr("ulimit -n"));
      ++refused;
    }
  }
  EXPECT_GT(started, 0);
  EXPECT_GT(refused, 0);
}

TEST(Limits, WithAnyAddressSpaceLimitAStartWorksOrSaysWhyNot) {
  if (kUnderSanitizer) GTEST_SKIP() << "a sanitizer's shadow needs terabytes of it";
  const auto starts_with = [](rlim_t most) {
    SCOPED_TRACE(most / kMiB);
    return StartAttempt({"--kv-cache-memory-bytes", "64M"}, limited(RLIMIT_AS, most)).is_ready();
  };
  rlim_t refused = 0, started = rlim_t{64} << 30;  // largest refused, smallest started
  ASSERT_TRUE(starts_with(started));
  for (int i = 1; i <= 24; i += stride(8)) {
    const rlim_t most = static_cast<rlim_t>(i) * 32 * kMiB;
    if (starts_with(most))
      started = std::min(started, most);
    else if (most < started)  // near the limit it varies, because mappings are placed at random
      refused = most;
  }
  ASSERT_GT(refused, 0u);
  ASSERT_LT(refused, started);
  // Between the two, memory runs out during an engine's start, for example as it makes threads.
  while (started - refused > 4 * kMiB) {
    const rlim_t most = (started + refused) / 2;
    (starts_with(most) ? started : refused) = most;
  }
}

TEST(Limits, AnAddressSpaceTooSmallForThePoolIsRefusedAtTheStart) {
  if (kUnderSanitizer) GTEST_SKIP() << "a sanitizer's shadow needs terabytes of it";
  const StartAttempt daemon({"--kv-cache-memory-bytes", "1G"}, limited(RLIMIT_AS, 400 * kMiB));
  EXPECT_FALSE(daemon.is_ready());
  EXPECT_THAT(daemon.words(), HasSubstr("ulimit -v) is 400.00 MiB, an engine maps 1.0"));
}

TEST(Limits, AFileSizeLimitBelowThePoolOrTheLedgerIsAnErrorNotASignal) {
  const auto start = [](rlim_t most) {
    const StartAttempt daemon(kSmallPool, limited(RLIMIT_FSIZE, most));
    EXPECT_FALSE(daemon.is_ready());
    return daemon.words();
  };
  EXPECT_THAT(start(kMiB / 2), HasSubstr("ulimit -f) is 512.00 KiB, the daemon's ledger has"));
  EXPECT_THAT(start(4 * kMiB),
              HasSubstr("ulimit -f) is 4.00 MiB, the pool's largest object has 8"));
}

TEST(Limits, AChannelAboveTheFileSizeLimitIsRefusedToItsClientOnly) {
  const Daemon daemon(kSmallPool, limited(RLIMIT_FSIZE, 16 * kMiB));
  const auto refused = Client::connect(client_options(daemon.socket(), kAnyEngine, 32 * kMiB));
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().text, HasSubstr("32.00 MiB"));
  EXPECT_EQ(daemon.connect(kAnyEngine, kMiB).generate(small_request())->tokens.size(), 4u);
}

TEST(Limits, NothingIsLockedInMemory) {
  const StartAttempt daemon(kSmallPool, limited(RLIMIT_MEMLOCK, 0));
  EXPECT_TRUE(daemon.is_ready()) << daemon.words();
}

TEST(Limits, WithAnyProcessLimitAStartWorksOrSaysWhyNot) {
  if (geteuid() != 0) GTEST_SKIP() << "NOT RUN: needs root, to be a user without processes";
  char name[] = "/tmp/kvhive-test-XXXXXX";
  const std::filesystem::path directory = mkdtemp(name);
  const uid_t nobody_else = 1'000'000 + static_cast<uid_t>(getpid());
  ASSERT_EQ(chown(directory.c_str(), nobody_else, nobody_else), 0);
  const auto socket = (directory / "s").string();
  int started = 0, refused = 0;
  for (int most = 1; most <= 31; most += stride(6)) {
    SCOPED_TRACE(most);
    const StartAttempt daemon({"--kv-cache-memory-bytes", "8M", "--socket", socket}, [&] {
      limited(RLIMIT_NPROC, static_cast<rlim_t>(most))();
      if (setgid(nobody_else) != 0 || setuid(nobody_else) != 0) _exit(126);
    });
    ++(daemon.is_ready() ? started : refused);
  }
  EXPECT_GT(started, 0);
  EXPECT_GT(refused, 0);
  std::filesystem::remove_all(directory);
}

// -- memory ---------------------------------------------------------------------------------------

TEST(Limits, WithAnyPoolSizeInACgroupAStartWorksOrSaysWhyNot) {
  if (kUnderSanitizer) GTEST_SKIP() << "a sanitizer's own memory is what would not fit";
  const auto group = MemoryCgroup::make(160 * kMiB);
  if (!group) GTEST_SKIP() << "NOT RUN: needs root, and cgroups with a memory controller";
  int started = 0, refused = 0;
  for (int i = 1; i <= 50; i += stride(7)) {
    const std::string size = std::to_string(i * 6) + "M";
    SCOPED_TRACE(size);
    const StartAttempt daemon({"--kv-cache-memory-bytes", size}, [&] { group->enter(); });
    if (daemon.is_ready()) {
      expect_service(daemon);
      ++started;
      continue;
    }
    ++refused;
    if (i * 6 <= 160) continue;  // the pool fits; the engine's other memory may not
    EXPECT_THAT(daemon.words(), HasSubstr("the pool needs"));
    EXPECT_THAT(daemon.words(), HasSubstr(group->name() + " (memory."));
    EXPECT_THAT(daemon.words(), HasSubstr("lower kv-cache-memory-bytes"));
  }
  std::printf("%d started, %d refused in words\n", started, refused);
  EXPECT_GT(started, 0);
  EXPECT_GT(refused, 0);
}

TEST(Limits, AClientsLargeChannelDoesNotBringTheOomKiller) {
  if (kUnderSanitizer) GTEST_SKIP() << "a sanitizer's own memory is what would not fit";
  const auto group = MemoryCgroup::make(200 * kMiB);
  if (!group) GTEST_SKIP() << "NOT RUN: needs root, and cgroups with a memory controller";
  const Daemon daemon(kSmallPool, [&] { group->enter(); });
  const auto refused = Client::connect(client_options(daemon.socket(), kAnyEngine, 512 * kMiB));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::out_of_memory);
  EXPECT_THAT(refused.error().text, HasSubstr("a channel needs 512.00 MiB, cgroup "));
  EXPECT_EQ(daemon.connect(kAnyEngine, kMiB).generate(small_request())->tokens.size(), 4u);
  EXPECT_EQ(daemon.status()["engines"][0]["restarts"], 0);
}

/// Otherwise who goes on asking gets nearly all memory, and the next long prompt is an engine's
/// end.
TEST(Limits, ClientsThatTakeWhatChannelsTheyCanGetLeaveEnginesTheirMemory) {
  if (kUnderSanitizer) GTEST_SKIP() << "a sanitizer's own memory is what would not fit";
  const auto group = MemoryCgroup::make(300 * kMiB);
  if (!group) GTEST_SKIP() << "NOT RUN: needs root, and cgroups with a memory controller";
  const Daemon daemon({"--kv-cache-memory-bytes", "32M"}, [&] { group->enter(); });
  std::vector<Client> clients;
  for (std::size_t bytes = 64 * kMiB; bytes >= kLeastChannelBytes; bytes /= 2)
    while (auto client = Client::connect(client_options(daemon.socket(), kAnyEngine, bytes)))
      clients.push_back(std::move(*client));
  ASSERT_FALSE(clients.empty());
  GenerateRequest longest;
  longest.prompt_tokens.assign(2000, 300);
  longest.max_tokens = 8;
  for (Client& client : clients) {
    const auto answer = client.generate(longest);
    ASSERT_TRUE(answer.has_value()) << answer.error().text;
    EXPECT_EQ(answer->tokens.size(), 8u);
  }
  EXPECT_EQ(daemon.status()["engines"][0]["restarts"], 0);
}

/// Called in a child: makes a mount namespace with a tmpfs with `options` at each path.
BeforeExec with_small_tmpfs(const std::vector<std::string>& paths, const std::string& options) {
  return [=] {
    if (unshare(CLONE_NEWNS) != 0 ||
        mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0)
      _exit(126);
    for (const std::string& path : paths)
      if (mount("tmpfs", path.c_str(), "tmpfs", 0, options.c_str()) != 0) _exit(126);
  };
}

TEST(Limits, ThePoolDoesNotUseDevShm) {
  if (!can_make_namespaces()) GTEST_SKIP() << "NOT RUN: needs root, to mount a small tmpfs";
  const StartAttempt daemon({"--kv-cache-memory-bytes", "64M"},
                            with_small_tmpfs({"/dev/shm"}, "size=64k"));
  ASSERT_TRUE(daemon.is_ready()) << daemon.words();
  expect_service(daemon);
}

TEST(Limits, AFullFileSystemForTheSocketIsNamedInTheError) {
  if (!can_make_namespaces()) GTEST_SKIP() << "NOT RUN: needs root, to mount a small tmpfs";
  char name[] = "/tmp/kvhive-test-XXXXXX";
  const std::filesystem::path directory = mkdtemp(name);
  // No inode for a directory; or one for a directory, but none for a socket in it.
  for (const std::string inodes : {"1", "2"}) {
    const StartAttempt daemon(
        {"--kv-cache-memory-bytes", "8M", "--socket", directory.string() + "/new/s"},
        with_small_tmpfs({directory}, "size=64k,nr_inodes=" + inodes));
    EXPECT_FALSE(daemon.is_ready());
    EXPECT_THAT(daemon.words(), HasSubstr("No space left on device"));
    EXPECT_THAT(daemon.words(), HasSubstr(directory.string()));
  }
  std::filesystem::remove_all(directory);
}

// -- process slots --------------------------------------------------------------------------------

/// What an engine of the pool would say.
EngineHello hello_for(const PoolGeometry& geometry) {
  EngineHello hello;
  hello.layout_hash = layout_hash({});
  hello.cache = geometry.models[0];
  hello.cpu_kernels = geometry.cpu_kernels;
  return hello;
}

/// A process that takes a slot as an engine does, and then does nothing.
class Squatter {
 public:
  explicit Squatter(const Daemon& daemon, const PoolGeometry& geometry)
      : process_([&] {
          const EngineHello hello = hello_for(geometry);
          auto socket = connect_to_daemon(daemon.socket());
          if (!socket || !say_hello(socket->get(), hello)) _exit(1);
          pause();
        }) {}

 private:
  ChildProcess process_;
};

TEST(Limits, TheThirtySecondEngineIsRefusedAndAFreedSlotIsReused) {
  const Daemon daemon(kSmallPool);
  const PoolGeometry geometry = daemon.pool().geometry();
  const auto taken = [&] { return daemon.status()["slots"].size(); };
  std::vector<Squatter> squatters;
  for (std::size_t i = 1; i < kMaxProcesses; ++i) {
    squatters.emplace_back(daemon, geometry);
    ASSERT_TRUE(eventually([&] { return taken() == i + 1; }, kHang)) << i;
  }
  const auto join = [&]() -> Expected<void> {  // says hello as an engine, from this process
    auto socket = connect_to_daemon(daemon.socket());
    auto welcome = say_hello(socket->get(), hello_for(geometry));
    if (!welcome) return forward_error(welcome);
    return {};
  };
  const auto refused = join();
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, Errc::too_many_processes);
  EXPECT_THAT(refused.error().text, HasSubstr("all 31 process slots are taken"));
  EXPECT_THAT(refused.error().text, HasSubstr("end an engine"));
  EXPECT_EQ(daemon.connect(0).generate(small_request())->tokens.size(), 4u);

  squatters.pop_back();
  ASSERT_TRUE(eventually([&] { return taken() == kMaxProcesses - 1; }, kHang));
  squatters.emplace_back(daemon, geometry);
  EXPECT_TRUE(eventually([&] { return taken() == kMaxProcesses; }, kHang));
  squatters.clear();
  EXPECT_TRUE(eventually([&] { return taken() == 1; }, kHang));
  EXPECT_TRUE(daemon.fsck_is_clean());
}

// -- descriptors of a daemon that runs ------------------------------------------------------------

TEST(Limits, AKeeperOutOfDescriptorsRefusesClientsWithAReasonAndGoesOn) {
  const Daemon daemon(kSmallPool);
  Client early = daemon.connect(0);
  EXPECT_EQ(early.generate(small_request())->tokens.size(), 4u) << "it has all that it needs";
  rlimit before{};
  ASSERT_EQ(prlimit(daemon.keeper(), RLIMIT_NOFILE, nullptr, &before), 0);
  // UBSan looks at objects through pipes of its own, and takes them for broken without any.
  constexpr rlim_t kLeast = kUnderSanitizer ? 4 : 0;
  for (const rlim_t more : {kLeast, rlim_t{8}}) {
    const rlim_t most = descriptors_of(daemon.pid()) + more;
    const rlimit none{most, before.rlim_max};
    ASSERT_EQ(prlimit(daemon.keeper(), RLIMIT_NOFILE, &none, nullptr), 0);
    for (int i = 0; i < 20; ++i) {
      const auto refused = Client::connect(client_options(daemon.socket(), 0, kLeastChannelBytes));
      ASSERT_FALSE(refused.has_value());
      EXPECT_EQ(refused.error().code, ErrorCode::os_error) << refused.error().text;
      EXPECT_THAT(refused.error().text, HasSubstr("cannot take another connection"));
      EXPECT_THAT(refused.error().text, HasSubstr(std::to_string(most) + " file descriptors"));
      EXPECT_THAT(refused.error().text, HasSubstr("ulimit -n"));
    }
    EXPECT_EQ(early.generate(small_request(32))->tokens.size(), 32u);
  }
  ASSERT_EQ(prlimit(daemon.keeper(), RLIMIT_NOFILE, &before, nullptr), 0);
  EXPECT_EQ(daemon.connect(0).generate(small_request())->tokens.size(), 4u);
}

TEST(Limits, ChannelsAboveADomainsQuotaAreRefusedUntilOneIsClosed) {
  std::vector<std::string> flags = kSmallPool;
  flags.insert(flags.end(), {"--channel-bytes-per-domain", std::to_string(2 * kLeastChannelBytes)});
  const Daemon daemon(flags);
  const auto connect = [&] {
    return Client::connect(client_options(daemon.socket(), 0, kLeastChannelBytes));
  };
  auto first = connect();
  const auto second = connect();
  ASSERT_TRUE(first && second);
  const auto refused = connect();
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::pool_exhausted);
  EXPECT_THAT(refused.error().text, HasSubstr("channel-bytes-per-domain grants 2.00 MiB"));
  EXPECT_EQ(first->generate(small_request())->tokens.size(), 4u);
  first = ClientError{};  // closes the first client
  EXPECT_TRUE(eventually([&] { return connect().has_value(); }, kHang));
}

TEST(Limits, ManyClientsLeaveEnoughDescriptorsToReplaceAnEngine) {
  const Daemon daemon(kSmallPool, limited(RLIMIT_NOFILE, 128));
  const pid_t dead = daemon.status()["engines"][0]["pid"];
  std::vector<Client> clients;
  auto next = Client::connect(client_options(daemon.socket(), 0, kLeastChannelBytes));
  for (; next; next = Client::connect(client_options(daemon.socket(), 0, kLeastChannelBytes)))
    clients.push_back(std::move(*next));
  EXPECT_THAT(next.error().text, HasSubstr("ulimit -n"));
  EXPECT_GT(clients.size(), 5u);  // usually 11; each may find descriptors of the last one
  signal_process(dead, SIGKILL);
  for (Client& client : clients) {
    const auto result = client.generate(small_request());
    ASSERT_TRUE(result.has_value()) << result.error().text;
    EXPECT_EQ(result->tokens.size(), 4u) << result->error.text;
  }
  clients.clear();
  EXPECT_TRUE(eventually(
      [&] {
        return Client::connect(client_options(daemon.socket(), 0, kLeastChannelBytes)).has_value();
      },
      kHang));
}

TEST(Limits, AClientOutOfDescriptorsIsToldSo) {
  const Daemon daemon(kSmallPool);
  for (rlim_t left = 0; left < 6; ++left) {
    ChildProcess client([&] {
      const UniqueFd lowest_free{dup(0)};
      const rlimit limit{static_cast<rlim_t>(lowest_free.get()) + left, 4096};
      if (setrlimit(RLIMIT_NOFILE, &limit) != 0) _exit(1);
      const auto refused = Client::connect(client_options(daemon.socket(), 0, kLeastChannelBytes));
      const bool is_told = !refused && refused.error().code == ErrorCode::os_error &&
                           refused.error().text.find("ulimit -n") != std::string::npos;
      if (!is_told && !refused) std::fprintf(stderr, "%s\n", refused.error().text.c_str());
      _exit(is_told || (refused && left >= 4) ? 0 : 1);
    });
    EXPECT_TRUE(ended_well(client.wait())) << left;
  }
  EXPECT_EQ(daemon.connect(0).generate(small_request())->tokens.size(), 4u);
}

}  // namespace
}  // namespace kvhive::testing
