// Users of one daemon must not hit each other's blocks nor measure them by time (invariant 8).
// Tests use real daemons and real user ids. Only root can act as other users; without root these
// tests are skipped and say so.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <grp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>

#include <cmath>

#include "base/check.hpp"
#include "tests/support/child_process.hpp"
#include "tests/support/payload.hpp"
#include "tests/support/playing_user.hpp"
#include "tests/tools/daemon.hpp"
#include "tools/cli/inspector.hpp"

namespace kvhive::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

/// Adds the flag that lets all users connect.
std::vector<std::string> open_to_all(std::vector<std::string> flags) {
  flags.insert(flags.end(), {"--socket-access", "everybody"});
  return flags;
}

class Isolation : public ::testing::Test {
 protected:
  void start(const std::vector<std::string>& flags) {
    daemon_.emplace(flags);
    // The test made the directory, so the daemon does not set its mode.
    ASSERT_EQ(chmod(daemon_->directory().c_str(), 0711), 0);
  }
  Result<Client> connect(uid_t user, std::uint32_t engine = kAnyEngine, gid_t group = kGuests) {
    const PlayingUser playing(user, group);
    return Client::connect({daemon_->socket(), engine, std::size_t{1} << 20});
  }
  Progress generate(uid_t user, const GenerateRequest& request, std::uint32_t engine = kAnyEngine) {
    auto client = connect(user, engine);
    KV_CHECK(client.has_value(), client.error().text);
    auto done = client->generate(request);
    KV_CHECK(done.has_value(), done.error().text);
    EXPECT_EQ(done->reason, Finish::length) << done->error.text;
    return *done;
  }
  /// Cached tokens divided by the tokens that can be cached: all but the last token's block.
  static double hit_rate(const Progress& result) {
    const std::uint32_t most = (result.prompt_tokens - 1) / 16 * 16;
    return static_cast<double>(result.cached_tokens) / most;
  }
  std::vector<std::string> domains_of_blocks() const {
    std::set<std::string> names;
    const Json all =
        daemon_->cli({"pool", "blocks", "--limit", "100000", "--format", "json"}).json();
    for (const Json& block : all) names.insert(block["domain"].get<std::string>());
    return {names.begin(), names.end()};
  }

  std::optional<Daemon> daemon_;
};

const GenerateRequest& long_prompt() {
  static const GenerateRequest request = request_of(passage(0, 1'500), 20);
  return request;
}

// -- everything is hit within a domain, nothing across domains

TEST_F(Isolation, UsersShareWithThemselvesOnly) {
  KV_SKIP_UNLESS_WE_CAN_PLAY_USERS();
  start(open_to_all({"--engines", "2", "--kv-cache-memory-bytes", "32M"}));
  const Progress first = generate(kAlice, long_prompt(), 0);
  EXPECT_EQ(hit_rate(first), 0.0);
  EXPECT_EQ(hit_rate(generate(kBob, long_prompt(), 0)), 0.0)
      << "Bob hit Alice's blocks on the same engine";
  EXPECT_EQ(hit_rate(generate(0, long_prompt(), 1)), 0.0)
      << "the daemon's own user hit another user's blocks";
  for (const std::uint32_t engine : {0u, 1u})
    for (const uid_t user : {kAlice, kBob, uid_t{0}}) {
      const Progress again = generate(user, long_prompt(), engine);
      EXPECT_EQ(hit_rate(again), 1.0) << "user " << user << ", engine " << engine;
      EXPECT_EQ(ids(again), ids(first));
    }
  EXPECT_THAT(domains_of_blocks(), ElementsAre("uid-0", "uid-60001", "uid-60002"));
  const Json shares = daemon_->stat()["domains"];
  EXPECT_EQ(shares["uid-60001"], shares["uid-60002"]) << "each user computed the same blocks";
  EXPECT_GT(shares["uid-60001"]["idle"].get<int>(), 20);
  EXPECT_TRUE(daemon_->fsck_is_clean());
}

TEST_F(Isolation, AllUsersShareWithSharingAll) {
  KV_SKIP_UNLESS_WE_CAN_PLAY_USERS();
  start(open_to_all({"--kv-cache-memory-bytes", "32M", "--sharing", "all"}));
  EXPECT_EQ(hit_rate(generate(kAlice, long_prompt())), 0.0);
  EXPECT_EQ(hit_rate(generate(kBob, long_prompt())), 1.0);
  EXPECT_THAT(domains_of_blocks(), ElementsAre("all"));
}

TEST_F(Isolation, MembersOfANamedDomainShareAndOthersDoNot) {
  KV_SKIP_UNLESS_WE_CAN_PLAY_USERS();
  start(open_to_all({"--kv-cache-memory-bytes", "32M", "--domains", "team=60001,60002"}));
  EXPECT_EQ(hit_rate(generate(kAlice, long_prompt())), 0.0);
  EXPECT_EQ(hit_rate(generate(kBob, long_prompt())), 1.0);
  EXPECT_EQ(hit_rate(generate(0, long_prompt())), 0.0);
  EXPECT_THAT(domains_of_blocks(), ElementsAre("team", "uid-0"));
}

TEST_F(Isolation, OnlyListedUsersAreServedWithSharingListed) {
  KV_SKIP_UNLESS_WE_CAN_PLAY_USERS();
  start(open_to_all(
      {"--kv-cache-memory-bytes", "32M", "--sharing", "listed", "--domains", "team=60001,@60010"}));
  EXPECT_TRUE(connect(kAlice).has_value());
  EXPECT_TRUE(connect(kBob, kAnyEngine, kStaff).has_value())
      << "user 60002 is a member by its group";
  const auto refused = connect(kBob);
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().text, HasSubstr("user 60002 is in none of the domains"));
}

/// The domain belongs to the channel: a request stays in its domain when another engine takes it
/// over.
TEST_F(Isolation, ATakeoverStaysInTheDomain) {
  KV_SKIP_UNLESS_WE_CAN_PLAY_USERS();
  start(open_to_all({"--engines", "2", "--kv-cache-memory-bytes", "32M"}));
  auto client = connect(kAlice, 0);
  ASSERT_TRUE(client.has_value());
  GenerateRequest request = request_of(passage(0, 400), 600);
  const RequestId number = client->submit(request).value();
  Progress whole;
  bool is_killed = false;
  std::uint32_t engine = 0;
  while (whole.reason == Finish::none) {
    ASSERT_TRUE(client->wait().has_value());
    const Progress news = *client->read(number);
    whole.tokens.insert(whole.tokens.end(), news.tokens.begin(), news.tokens.end());
    whole.reason = news.reason;
    whole.text += news.text;
    engine = news.engine.value_or(engine);
    if (whole.tokens.size() > 100 && !std::exchange(is_killed, true))
      signal_process(daemon_->engine(0)["pid"].get<pid_t>(), SIGKILL);
  }
  ASSERT_EQ(whole.reason, Finish::length);
  EXPECT_LE(engine, 1u);
  EXPECT_THAT(domains_of_blocks(), ElementsAre("uid-60001"));
  // Alice finds what the second engine published, and no other user does.
  const GenerateRequest again = request_of(request.prompt + whole.text, 20);
  EXPECT_GT(hit_rate(generate(kAlice, again)), 0.5);
  EXPECT_EQ(hit_rate(generate(kBob, again)), 0.0);
}

TEST_F(Isolation, PoolCommandsShowDomainsByName) {
  KV_SKIP_UNLESS_WE_CAN_PLAY_USERS();
  start(open_to_all({"--kv-cache-memory-bytes", "32M"}));
  (void)generate(kAlice, long_prompt());
  const std::string prompt = long_prompt().prompt;
  const Json ours = daemon_->cli({"pool", "why", prompt, "--format", "json"}).json();
  EXPECT_EQ(ours["cached_blocks"], 0);
  EXPECT_EQ(ours["blocks"][0]["verdict"], "other_domain");
  EXPECT_EQ(ours["blocks"][0]["domain"], "uid-60001");
  EXPECT_THAT(ours["reason"].get<std::string>(), HasSubstr("cached for domain uid-60001 only"));
  const Json hers =
      daemon_->cli({"pool", "why", prompt, "--domain", "uid-60001", "--format", "json"}).json();
  EXPECT_EQ(hers["blocks"][0]["verdict"], "present");
  const CommandResult unknown = daemon_->cli({"pool", "why", prompt, "--domain", "uid-7"});
  EXPECT_EQ(unknown.exit_code, 1);
  EXPECT_THAT(unknown.err, HasSubstr("domain: no client of 'uid-7' has come yet"));
  EXPECT_THAT(daemon_->cli({"pool", "stat"}).out, HasSubstr("uid-60001"));
}

TEST_F(Isolation, AThousandUsersAreShownByTheirNames) {
  KV_SKIP_UNLESS_WE_CAN_PLAY_USERS();
  start(open_to_all({"--kv-cache-memory-bytes", "32M"}));
  constexpr uid_t kUsers = 1'100;
  for (uid_t i = 0; i < kUsers; ++i) ASSERT_TRUE(connect(kStrangers + i).has_value()) << i;
  (void)generate(kStrangers + kUsers - 1, long_prompt());
  EXPECT_THAT(domains_of_blocks(), ElementsAre("uid-" + std::to_string(kStrangers + kUsers - 1)));
  EXPECT_EQ(daemon_->stat()["domains"].size(), 1u);
}

// -- which users may connect

TEST_F(Isolation, OnlyTheOwnerConnectsByDefault) {
  KV_SKIP_UNLESS_WE_CAN_PLAY_USERS();
  start({"--kv-cache-memory-bytes", "8M"});
  const auto refused = connect(kAlice);
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().text, HasSubstr("Permission denied"));
  EXPECT_TRUE(Client::connect({.socket = daemon_->socket()}).has_value());
}

TEST_F(Isolation, OnlyTheGroupInSocketAccessConnects) {
  KV_SKIP_UNLESS_WE_CAN_PLAY_USERS();
  start({"--kv-cache-memory-bytes", "8M", "--socket-access", "@60010"});
  EXPECT_TRUE(connect(kAlice, kAnyEngine, kStaff).has_value());
  const auto refused = connect(kAlice);
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().text, HasSubstr("Permission denied"));
}

/// Other users may only be clients. They get no descriptor of the pool and no status.
TEST_F(Isolation, AnotherUserGetsNothingButAChannel) {
  KV_SKIP_UNLESS_WE_CAN_PLAY_USERS();
  start(open_to_all({"--kv-cache-memory-bytes", "8M"}));
  const auto expect_no_welcome = [&](const auto& hello) {
    const PlayingUser playing(kAlice);
    const auto socket = connect_to_daemon(daemon_->socket());
    ASSERT_TRUE(socket.has_value());
    const auto refused = say_hello(socket->get(), hello);
    ASSERT_FALSE(refused.has_value());
    EXPECT_THAT(refused.error().text, HasSubstr("only the daemon's own user, or root, may attach"));
  };
  expect_no_welcome(InspectorHello{layout_hash({}), 1});
  EngineHello engine;
  engine.layout_hash = layout_hash({});
  expect_no_welcome(engine);
  expect_no_welcome(StewardHello{layout_hash({})});
  const auto expect_no_answer = [&](const auto& question) {
    const PlayingUser playing(kAlice);
    const auto socket = connect_to_daemon(daemon_->socket());
    ASSERT_TRUE(send_packet(socket->get(), question).has_value());
    const auto answer = receive_answer(socket->get());
    ASSERT_TRUE(answer.has_value() && answer->has_value());
    EXPECT_TRUE((*answer)->is(MessageType::refused));
    EXPECT_TRUE((*answer)->fds.empty());
    EXPECT_TRUE((*answer)->tail().empty());
  };
  expect_no_answer(StatusRequest{});
  expect_no_answer(RepairRequest{});
  expect_no_answer(Formatted{});
  expect_no_answer(Reaped{});
}

// -- bytes that one user leaves in memory

/// A small pool whose blocks are all Alice's, with every byte set by the test. Then Bob uses it.
class Leftovers : public Isolation {
 protected:
  static constexpr std::byte kSecret{0x5e}, kNan{0xff};  // all ones is NaN in any element type

  void fill_as_alice(std::byte with, const std::string& scrub) {
    start(open_to_all(
        {"--num-gpu-blocks-override", "48", "--max-model-len", "512", "--scrub", scrub}));
    memory_.emplace(daemon_->pool());
    for (std::size_t i = 0; owned_by(kAlicesDomain) < 47; ++i)
      (void)generate(kAlice, request_of(passage(i * 200 % 2'000, 700), 100));
    std::ranges::fill(bytes(), with);
  }
  std::span<std::byte> bytes() const {
    return {memory_->arena(Tier::device) + block_bytes(), 47 * block_bytes()};
  }
  std::size_t block_bytes() const { return memory_->geometry().models[0].kv.block_bytes(); }
  std::size_t owned_by(std::uint16_t domain) const {
    std::size_t blocks = 0;
    for (std::uint32_t id = 1; id < 48; ++id)
      blocks += memory_->descriptors()[id].domain.load() == domain;
    return blocks;
  }
  /// Longest run of the byte `of` in a block of this domain.
  std::size_t longest_run(std::uint16_t domain, std::byte of) const {
    std::size_t longest = 0;
    for (std::uint32_t id = 1; id < 48; ++id) {
      if (memory_->descriptors()[id].domain.load() != domain) continue;
      std::size_t run = 0;
      for (std::size_t i = 0; i < block_bytes(); ++i) {
        run = payload_of(*memory_, BlockId{id})[i] == of ? run + 1 : 0;
        longest = std::max(longest, run);
      }
    }
    return longest;
  }
  /// A request that leaves blocks half full. It returns log probabilities, which must not be NaN.
  static GenerateRequest bobs_request() {
    GenerateRequest request = request_of(passage(3, 300), 37);
    request.logprobs = 5;
    return request;
  }
  /// Bob's result from a new pool that no other user has used.
  static const Progress& undisturbed() {
    static const Progress result = [] {
      const Daemon daemon({"--kv-cache-memory-bytes", "8M"});
      return *daemon.connect().generate(bobs_request());
    }();
    return result;
  }
  static void expect_same(const Progress& bobs) {
    EXPECT_EQ(ids(bobs), ids(undisturbed()));
    for (std::size_t i = 0; i < bobs.tokens.size(); ++i) {
      EXPECT_TRUE(std::isfinite(bobs.tokens[i].logprob));
      EXPECT_EQ(bobs.tokens[i].logprob, undisturbed().tokens[i].logprob);
    }
  }

  // Number 0 is the daemon's own user.
  static constexpr std::uint16_t kAlicesDomain = 1, kBobsDomain = 2;
  std::optional<PoolMemory> memory_;
};

TEST_F(Leftovers, AreZeroedBeforeAnotherUserGetsTheBlock) {
  KV_SKIP_UNLESS_WE_CAN_PLAY_USERS();
  fill_as_alice(kSecret, "on_domain_change");
  expect_same(generate(kBob, bobs_request()));
  ASSERT_GT(owned_by(kBobsDomain), 5u);
  EXPECT_LT(longest_run(kBobsDomain, kSecret), 8u);
  EXPECT_GT(longest_run(kBobsDomain, std::byte{0}), 100u)
      << "blocks of Bob have places that are not written yet";
}

/// Shows that the test above would detect missing scrubbing.
TEST_F(Leftovers, StayWithScrubNever) {
  KV_SKIP_UNLESS_WE_CAN_PLAY_USERS();
  fill_as_alice(kSecret, "never");
  expect_same(generate(kBob, bobs_request()));
  ASSERT_GT(owned_by(kBobsDomain), 5u);
  EXPECT_GT(longest_run(kBobsDomain, kSecret), 100u);
}

/// Positions past the end are masked by selection: even unscrubbed NaN reaches no output.
TEST_F(Leftovers, ThatAreNanReachNoOutput) {
  KV_SKIP_UNLESS_WE_CAN_PLAY_USERS();
  fill_as_alice(kNan, "never");
  expect_same(generate(kBob, bobs_request()));
  EXPECT_GT(longest_run(kBobsDomain, kNan), 100u)
      << "the blocks have no NaN, so the test proves nothing";
  std::vector<Client> clients;
  for (const uid_t user : {kBob, kBob}) clients.push_back(connect(user).value());
  std::vector<GenerateRequest> many;
  for (std::size_t i = 0; i < 40; ++i) {
    many.push_back(request_of(passage(i * 31 % 900, 60 + i * 7), 5 + std::uint32_t(i % 23)));
    many.back().logprobs = 3;
  }
  for (const Progress& result : generate_all(clients, many)) {
    EXPECT_EQ(result.reason, Finish::length) << result.error.text;
    for (const OutputToken& token : result.tokens) {
      EXPECT_TRUE(std::isfinite(token.logprob));
      for (const TokenLogprob& other : token.top) EXPECT_TRUE(std::isfinite(other.logprob));
    }
  }
}

// -- the inspector

/// Says hello as an inspector. Returns the welcome with its descriptors.
Welcomed<InspectorWelcome> inspect(const Daemon& daemon, Privilege privilege, UniqueFd& socket) {
  socket = connect_to_daemon(daemon.socket()).value();
  const InspectorHello hello{layout_hash({}), privilege == Privilege::tokens_too ? 1u : 0u};
  return say_hello(socket.get(), hello).value();
}

std::string file_behind(const UniqueFd& fd) {
  return std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd.get())).string();
}

TEST(Inspector, GetsNoTokensNorKvUnlessItAsksForTokens) {
  const Daemon daemon({"--kv-cache-memory-bytes", "8M"});
  UniqueFd socket;
  for (const auto privilege : {Privilege::metadata_only, Privilege::tokens_too}) {
    const auto packet = inspect(daemon, privilege, socket);
    std::vector<std::string> files;
    for (const UniqueFd& fd : packet.fds) files.push_back(file_behind(fd));
    if (privilege == Privilege::metadata_only)
      EXPECT_THAT(files,
                  UnorderedElementsAre(HasSubstr("kvhive-control"), HasSubstr("kvhive-metadata")));
    else
      EXPECT_THAT(files,
                  UnorderedElementsAre(HasSubstr("kvhive-control"), HasSubstr("kvhive-metadata"),
                                       HasSubstr("kvhive-tokens")));
  }
}

TEST(Inspector, CannotMakeItsDescriptorsWritable) {
  const Daemon daemon({"--kv-cache-memory-bytes", "8M"});
  UniqueFd socket;
  const auto packet = inspect(daemon, Privilege::tokens_too, socket);
  ASSERT_EQ(packet.fds.size(), 3u);
  for (const UniqueFd& fd : packet.fds) {
    SCOPED_TRACE(file_behind(fd));
    EXPECT_EQ(fcntl(fd.get(), F_GETFL) & O_ACCMODE, O_RDONLY);
    EXPECT_EQ(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0), MAP_FAILED);
    EXPECT_EQ(errno, EACCES);
    void* page = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd.get(), 0);
    ASSERT_NE(page, MAP_FAILED);
    EXPECT_EQ(mprotect(page, 4096, PROT_READ | PROT_WRITE), -1);
    EXPECT_EQ(errno, EACCES);
    munmap(page, 4096);
    EXPECT_EQ(pwrite(fd.get(), "x", 1, 0), -1);
    EXPECT_EQ(errno, EBADF);
    EXPECT_EQ(ftruncate(fd.get(), 0), -1);
    struct stat status {};
    ASSERT_EQ(fstat(fd.get(), &status), 0);
    EXPECT_EQ(status.st_mode & 07777, 0600u) << "no other user can open the file again";
  }
}

/// When a descriptor is opened again through /proc, the file's mode decides; it is 0600. The
/// daemon's own user (which may trace the daemon's processes anyway) and root get a writable
/// descriptor. For any other user that was given the descriptor it stays read-only.
TEST(Inspector, CanReopenForWritingOnlyAsTheOwnUserOrRoot) {
  KV_SKIP_UNLESS_WE_CAN_PLAY_USERS();
  const Daemon daemon({"--kv-cache-memory-bytes", "8M"});
  UniqueFd socket;
  const auto packet = inspect(daemon, Privilege::tokens_too, socket);
  for (const UniqueFd& fd : packet.fds) {
    const std::string path = "/proc/self/fd/" + std::to_string(fd.get());
    EXPECT_TRUE(UniqueFd(open(path.c_str(), O_RDWR | O_CLOEXEC)))
        << "root, the owner here, was refused";
    ChildProcess child([&] {
      KV_CHECK(setgroups(0, nullptr) == 0 && setresgid(kGuests, kGuests, kGuests) == 0 &&
               setresuid(kAlice, kAlice, kAlice) == 0 && prctl(PR_SET_DUMPABLE, 1) == 0);
      for (const int mode : {O_RDWR, O_WRONLY, O_RDONLY}) {
        const bool is_refused = open(path.c_str(), mode | O_CLOEXEC) == -1 && errno == EACCES;
        if (!is_refused) _exit(1);
      }
    });
    EXPECT_TRUE(ended_well(child.wait())) << file_behind(fd);
  }
}

}  // namespace
}  // namespace kvhive::testing
