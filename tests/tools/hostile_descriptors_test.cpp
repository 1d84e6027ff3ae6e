// A process cannot harm others with the descriptors that the daemon gives it. It cannot resize an
// object (which would be a SIGBUS for every process that has it mapped); an inspector cannot write,
// and a client only what no other process has mapped.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <fstream>
#include <set>

#include "tests/support/merge_pages.hpp"
#include "tests/tools/daemon.hpp"
#include "tests/tools/footprint.hpp"

namespace kvhive::testing {
namespace {

using ::testing::AnyOf;
using ::testing::Each;
using ::testing::Eq;
using ::testing::HasSubstr;

const std::string kPrompt = "In the beginning";

Welcomed<ClientWelcome> welcome_as_client(const UniqueFd& socket) {
  return say_hello(socket.get(), ClientHello{kLeastChannelBytes}).value();
}

/// errno of a call that must fail.
template <class Result>
int refusal(Result result) {
  const int code = errno;
  EXPECT_EQ(result, Result(-1));
  return code;
}

constexpr int kPunch = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;

void expect_no_resizing(int fd) {
  struct stat status {};
  ASSERT_EQ(fstat(fd, &status), 0);
  // EINVAL and EBADF: not open for writing.
  const auto no = AnyOf(Eq(EPERM), Eq(EBADF), Eq(EINVAL));
  EXPECT_THAT(refusal(ftruncate(fd, 0)), no);
  EXPECT_THAT(refusal(ftruncate(fd, status.st_size - 4096)), no);
  EXPECT_THAT(refusal(ftruncate(fd, status.st_size + 4096)), no);
  EXPECT_THAT(refusal(fallocate(fd, 0, status.st_size, 4096)), no);
  EXPECT_THAT(refusal(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE)), AnyOf(no, Eq(EBUSY)));
  EXPECT_THAT(refusal(fallocate(fd, FALLOC_FL_COLLAPSE_RANGE, 0, 4096)), AnyOf(no, Eq(EOPNOTSUPP)));
  struct stat after {};
  ASSERT_EQ(fstat(fd, &after), 0);
  EXPECT_EQ(after.st_size, status.st_size);
}

void expect_read_only(int fd) {
  expect_no_resizing(fd);
  EXPECT_EQ(refusal(fallocate(fd, kPunch, 0, 4096)), EBADF);
  EXPECT_EQ(refusal(pwrite(fd, "x", 1, 0)), EBADF);
  EXPECT_EQ(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
  EXPECT_EQ(errno, EACCES);
  void* view = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd, 0);
  ASSERT_NE(view, MAP_FAILED);
  EXPECT_EQ(refusal(mprotect(view, 4096, PROT_READ | PROT_WRITE)), EACCES);
  EXPECT_NE(madvise(view, 4096, MADV_REMOVE), 0) << "which frees it";
  munmap(view, 4096);
}

void expect_unharmed(const Daemon& daemon) {
  EXPECT_EQ(daemon.connect().generate(request_of(kPrompt, 8))->tokens.size(), 8u);
  EXPECT_EQ(daemon.status()["engines"][0]["restarts"], 0);
  EXPECT_EQ(daemon.status()["steward"]["restarts"], 0);
  EXPECT_TRUE(daemon.fsck_is_clean());
}

class HostileDescriptors : public ::testing::Test {
 protected:
  HostileDescriptors() : socket(std::move(*connect_to_daemon(daemon.socket()))) {}

  const Daemon daemon{{"--kv-cache-memory-bytes", "8M"}};
  const UniqueFd socket;
};

TEST_F(HostileDescriptors, AClientGetsDescriptorsOfItsChannelAndNotOfThePool) {
  const auto welcome = welcome_as_client(socket);
  ASSERT_EQ(welcome.fds.size(), 4u);
  for (const std::size_t file : {0, 1}) {
    struct stat status {};
    ASSERT_EQ(fstat(welcome.fds[file].get(), &status), 0);
    EXPECT_EQ(static_cast<std::uint64_t>(status.st_size), welcome.message.channel_bytes);
  }
  const auto target = [&](std::size_t fd) {
    return std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(welcome.fds[fd].get()))
        .string();
  };
  EXPECT_EQ(target(0), "/memfd:kvhive-requests (deleted)");
  EXPECT_EQ(target(1), "/memfd:kvhive-answers (deleted)");
  EXPECT_EQ(target(2), "anon_inode:[eventfd]");
  EXPECT_EQ(target(3).rfind("socket:", 0), 0u);
}

TEST_F(HostileDescriptors, AClientCannotWriteItsAnswersNorFreeTheirMemory) {
  const auto welcome = welcome_as_client(socket);
  expect_read_only(welcome.fds.at(1).get());
  expect_unharmed(daemon);
}

/// A page fault in a hole would take memory in the engine's name.
TEST_F(HostileDescriptors, AnEngineMapsNoFileThatAClientCanWrite) {
  Client client = daemon.connect();
  EXPECT_TRUE(client.generate(request_of(kPrompt, 1)).has_value());
  const pid_t engine = daemon.engine(0)["pid"];
  EXPECT_TRUE(has_memory_object(engine, "requests")) << "open";
  std::ifstream maps("/proc/" + std::to_string(engine) + "/maps");
  const std::string all(std::istreambuf_iterator<char>(maps), {});
  EXPECT_NE(all.find("kvhive-answers"), std::string::npos);
  EXPECT_EQ(all.find("kvhive-requests"), std::string::npos);
}

TEST_F(HostileDescriptors, AClientCannotResizeItsChannelNorFreeWhatItsEngineReads) {
  auto welcome = welcome_as_client(socket);
  const std::size_t bytes = welcome.message.channel_bytes;
  auto& fds = welcome.fds;
  const UniqueFd requests(dup(fds.at(0).get()));
  auto channel = ClientChannel::open(std::move(fds[0]), fds[1], bytes, std::move(fds[2]));
  ASSERT_TRUE(channel && send_packet(socket.get(), RequestsSealed{}));
  expect_no_resizing(requests.get());
  EXPECT_EQ(refusal(fallocate(requests.get(), kPunch, 0, static_cast<off_t>(bytes))), EPERM);
  EXPECT_EQ(refusal(pwrite(requests.get(), "x", 1, 0)), EPERM) << "which locks the file";
  const auto view = channel->raw_requests();
  EXPECT_EQ(refusal(madvise(view.data(), view.size(), MADV_REMOVE)), EPERM);
  const auto slot = channel->submit(channel_request_of(kPrompt, 8)).value();
  EXPECT_TRUE(eventually([&] { return channel->read(slot).reason != FinishReason::none; }));
  expect_unharmed(daemon);
}

TEST_F(HostileDescriptors, AnEngineGetsNoRequestsThatItsClientHasNotSealed) {
  auto welcome = welcome_as_client(socket);
  ASSERT_TRUE(send_packet(socket.get(), RequestsSealed{}));
  const auto answer = receive_answer(socket.get());
  ASSERT_TRUE(answer && *answer);
  const auto refused = (*answer)->as<Refused>();
  ASSERT_TRUE(refused);
  EXPECT_THAT(refused->reason.str(), HasSubstr("sealed"));
  const auto requests_of = [&](pid_t pid) { return has_memory_object(pid, "requests"); };
  EXPECT_FALSE(requests_of(daemon.engine(0)["pid"]));
  expect_unharmed(daemon);
}

/// Whoever touches a page that is being merged waits: the client's engine must not be the one.
TEST_F(HostileDescriptors, AClientCanHaveNothingMergedThatItsEngineReadsOrWrites) {
  if (!this_system_merges_pages()) GTEST_SKIP() << "NOT RUN: this system merges no pages";
  auto welcome = say_hello(socket.get(), ClientHello{kManyExtents}).value();
  auto& fds = welcome.fds;
  const UniqueFd requests(dup(fds.at(0).get()));
  // Before the seal it may do what it likes.
  ASSERT_EQ(fallocate(requests.get(), 0, 0, off_t{kManyExtents}), 0);
  ASSERT_EQ(fallocate(requests.get(), kPunch, 0, off_t{kManyExtents}), 0);
  auto channel = ClientChannel::open(std::move(fds[0]), fds[1], kManyExtents, std::move(fds[2]));
  ASSERT_TRUE(channel && send_packet(socket.get(), RequestsSealed{}));
  const auto slot = channel->submit(channel_request_of(kPrompt, 8)).value();
  EXPECT_TRUE(eventually([&] { return channel->read(slot).reason != FinishReason::none; }));
  std::memset(channel->raw_requests().data() + prompts_offset(), 1,
              kManyExtents - prompts_offset());
  EXPECT_THAT(merge_all(requests), Each(EAGAIN));
  EXPECT_THAT(merge_all(fds[1]), Each(EAGAIN));
}

TEST_F(HostileDescriptors, AnInspectorCanWriteNothing) {
  const auto welcome = say_hello(socket.get(), InspectorHello{layout_hash({}), 1}).value();
  ASSERT_EQ(welcome.fds.size(), 3u) << "control, metadata, tokens";
  for (const UniqueFd& fd : welcome.fds) expect_read_only(fd.get());
  expect_unharmed(daemon);
}

TEST_F(HostileDescriptors, AProcessThatMayWriteThePoolCannotResizeIt) {
  std::size_t objects = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/" + std::to_string(daemon.pid()) + "/fd")) {
    std::error_code gone;
    const auto target = std::filesystem::read_symlink(entry, gone).string();
    if (target.find("memfd:kvhive-") == std::string::npos) continue;
    const UniqueFd fd{open(entry.path().c_str(), O_RDWR | O_CLOEXEC)};
    ASSERT_TRUE(fd) << target;
    expect_no_resizing(fd.get());
    ++objects;
  }
  EXPECT_EQ(objects, 5u) << "control, metadata, tokens, device, and the board";
  expect_unharmed(daemon);
}

}  // namespace
}  // namespace kvhive::testing
