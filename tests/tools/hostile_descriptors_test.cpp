// A process cannot harm others with the descriptors that the daemon gives it. It cannot resize an
// object (which would be a SIGBUS for every process that has it mapped), and an inspector cannot
// write.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <set>

#include "tests/tools/daemon.hpp"

namespace kvhive::testing {
namespace {

using ::testing::AnyOf;
using ::testing::Eq;

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
  EXPECT_THAT(refusal(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE)), no);
  EXPECT_THAT(refusal(fallocate(fd, FALLOC_FL_COLLAPSE_RANGE, 0, 4096)), AnyOf(no, Eq(EOPNOTSUPP)));
  struct stat after {};
  ASSERT_EQ(fstat(fd, &after), 0);
  EXPECT_EQ(after.st_size, status.st_size);
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
  ASSERT_EQ(welcome.fds.size(), 3u);
  struct stat status {};
  ASSERT_EQ(fstat(welcome.fds[0].get(), &status), 0);
  EXPECT_EQ(static_cast<std::uint64_t>(status.st_size), welcome.message.channel_bytes);
  const auto target = [&](std::size_t fd) {
    return std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(welcome.fds[fd].get()))
        .string();
  };
  EXPECT_EQ(target(1), "anon_inode:[eventfd]");
  EXPECT_EQ(target(2).rfind("socket:", 0), 0u);
}

TEST_F(HostileDescriptors, AClientCannotResizeItsChannelAndHolesInItHurtOnlyItself) {
  auto welcome = welcome_as_client(socket);
  const std::size_t bytes = welcome.message.channel_bytes;
  auto channel = ClientChannel::open(welcome.fds[0], bytes, std::move(welcome.fds[1]));
  ASSERT_TRUE(channel.has_value());
  expect_no_resizing(welcome.fds[0].get());
  for (int i = 0; i < 50; ++i) {  // the engine reads and writes the channel at the same time
    (void)channel->submit(channel_request_of(kPrompt, 8));
    ASSERT_EQ(fallocate(welcome.fds[0].get(), kPunch, 0, static_cast<off_t>(bytes)), 0);
  }
  expect_unharmed(daemon);
}

TEST_F(HostileDescriptors, AnInspectorCanWriteNothing) {
  const auto welcome = say_hello(socket.get(), InspectorHello{layout_hash({}), 1}).value();
  ASSERT_EQ(welcome.fds.size(), 3u) << "control, metadata, tokens";
  for (const UniqueFd& fd : welcome.fds) {
    expect_no_resizing(fd.get());
    EXPECT_EQ(refusal(fallocate(fd.get(), kPunch, 0, 4096)), EBADF);
    EXPECT_EQ(refusal(pwrite(fd.get(), "x", 1, 0)), EBADF);
    EXPECT_EQ(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0), MAP_FAILED);
    EXPECT_EQ(errno, EACCES);
    void* view = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd.get(), 0);
    ASSERT_NE(view, MAP_FAILED);
    EXPECT_EQ(refusal(mprotect(view, 4096, PROT_READ | PROT_WRITE)), EACCES);
    munmap(view, 4096);
  }
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
  EXPECT_EQ(objects, 4u) << "control, metadata, tokens, device";
  expect_unharmed(daemon);
}

}  // namespace
}  // namespace kvhive::testing
