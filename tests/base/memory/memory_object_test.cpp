#include "base/memory/memory_object.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "tests/support/child_process.hpp"
#include "tests/support/mapping_flags.hpp"
#include "tests/support/sanitizers.hpp"

namespace kvhive::testing {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t kBytes = 8192;

UniqueFd memory_of(std::size_t bytes) { return create_memory("kvhive-test", bytes).value(); }

TEST(CreateMemory, IsPrivateClosedOnExecAndSealed) {
  const UniqueFd fd = memory_of(kBytes);
  struct stat status {};
  ASSERT_EQ(fstat(fd.get(), &status), 0);
  EXPECT_EQ(status.st_size, off_t{kBytes});
  EXPECT_EQ(status.st_mode & 07777, 0600u);
  EXPECT_EQ(fcntl(fd.get(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  EXPECT_EQ(ftruncate(fd.get(), 0), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(ftruncate(fd.get(), 2 * kBytes), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(fcntl(fd.get(), F_ADD_SEALS, F_SEAL_WRITE), -1);
}

TEST(MappedMemory, IsLeftOutOfCoreDumps) {
  const UniqueFd fd = memory_of(kBytes);
  const auto map = MappedMemory::map(fd.get(), kBytes, Access::read_write, "test");
  ASSERT_TRUE(map.has_value());
  EXPECT_THAT(flags_of_mapping(map->data()), HasSubstr(" dd "));
}

TEST(CreateMemory, HasItsPagesFromTheStart) {
  const UniqueFd fd = memory_of(1 << 20);
  struct stat status {};
  ASSERT_EQ(fstat(fd.get(), &status), 0);
  EXPECT_GE(status.st_blocks * 512, 1 << 20);
}

TEST(MappedMemory, SharesBytesBetweenMappings) {
  const UniqueFd fd = memory_of(kBytes);
  auto first = MappedMemory::map(fd.get(), kBytes, Access::read_write, "test").value();
  auto second = MappedMemory::map(fd.get(), kBytes, Access::read_only, "test").value();
  EXPECT_EQ(first.size(), kBytes);
  first.data()[4711] = std::byte{42};
  EXPECT_EQ(second.data()[4711], std::byte{42});
}

TEST(MappedMemory, OutlivesItsDescriptor) {
  UniqueFd fd = memory_of(kBytes);
  auto map = MappedMemory::map(fd.get(), kBytes, Access::read_write, "test").value();
  fd = UniqueFd();
  map.data()[0] = std::byte{1};
  EXPECT_EQ(map.data()[0], std::byte{1});
}

TEST(MappedMemory, RefusesAnotherSizeNamingBoth) {
  const UniqueFd fd = memory_of(kBytes);
  const auto map = MappedMemory::map(fd.get(), 2 * kBytes, Access::read_write, "kvhive-x");
  ASSERT_FALSE(map.has_value());
  EXPECT_EQ(map.error().code, Errc::layout_mismatch);
  EXPECT_THAT(map.error().text, HasSubstr("kvhive-x"));
  EXPECT_THAT(map.error().text, HasSubstr("8192"));
  EXPECT_THAT(map.error().text, HasSubstr("16384"));
}

TEST(MappedMemory, RefusesMemoryThatCouldShrink) {
  const UniqueFd fd(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(fd.get(), kBytes), 0);
  for (const int seals : {0, F_SEAL_SHRINK}) {
    ASSERT_EQ(fcntl(fd.get(), F_ADD_SEALS, seals), 0);
    const auto map = MappedMemory::map(fd.get(), kBytes, Access::read_write, "test");
    ASSERT_FALSE(map.has_value());
    EXPECT_EQ(map.error().code, Errc::bad_format);
  }
  ASSERT_EQ(fcntl(fd.get(), F_ADD_SEALS, F_SEAL_GROW), 0);
  EXPECT_TRUE(MappedMemory::map(fd.get(), kBytes, Access::read_write, "test").has_value());
}

TEST(SealAgainstNewWriters, LeavesAMappingAsTheOnlyWayToWrite) {
  const UniqueFd fd = create_empty_memory("test", kBytes).value();
  const auto map = MappedMemory::map(fd.get(), kBytes, Access::read_write, "test").value();
  EXPECT_FALSE(is_sealed_against_new_writers(fd.get()));
  ASSERT_TRUE(seal_against_new_writers(fd.get(), "test"));
  EXPECT_TRUE(is_sealed_against_new_writers(fd.get()));
  map.data()[0] = std::byte{42};
  char byte = 0;
  EXPECT_EQ(pread(fd.get(), &byte, 1, 0), 1);
  EXPECT_EQ(byte, 42);
  EXPECT_EQ(pwrite(fd.get(), "x", 1, 0), -1);
  EXPECT_EQ(fallocate(fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, kBytes), -1);
  EXPECT_EQ(madvise(map.data(), kBytes, MADV_REMOVE), -1);
  EXPECT_FALSE(MappedMemory::map(fd.get(), kBytes, Access::read_write, "test").has_value());
  EXPECT_TRUE(allocate_memory(fd, 0, kBytes, kBytes, "test")) << "more memory is allowed";
}

TEST(MappedMemory, RefusesDescriptorsThatAreNoMemory) {
  const auto map = MappedMemory::map(-1, kBytes, Access::read_write, "test");
  ASSERT_FALSE(map.has_value());
  EXPECT_EQ(map.error().code, Errc::os_error);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const UniqueFd reading(ends[0]), writing(ends[1]);
  EXPECT_FALSE(MappedMemory::map(reading.get(), kBytes, Access::read_write, "test").has_value());
}

TEST(ReopenReadOnly, AllowsNoWritingByAnyWay) {
  const UniqueFd fd = memory_of(kBytes);
  const UniqueFd reader = reopen_read_only(fd.get()).value();
  EXPECT_EQ(pwrite(reader.get(), "x", 1, 0), -1);
  EXPECT_FALSE(MappedMemory::map(reader.get(), kBytes, Access::read_write, "test").has_value());
  auto map = MappedMemory::map(reader.get(), kBytes, Access::read_only, "test").value();
  EXPECT_EQ(mprotect(map.data(), kBytes, PROT_READ | PROT_WRITE), -1);
  EXPECT_EQ(errno, EACCES);
}

TEST(ReopenReadOnly, NeedsAnOpenDescriptor) { EXPECT_FALSE(reopen_read_only(-1).has_value()); }

TEST(MappedMemory, AdviceOnAnEmptyMappingIsHarmless) {
  const MappedMemory none;
  none.populate();
  none.prefer_huge_pages();
  none.hide_from_children();
  EXPECT_EQ(none.data(), nullptr);
}

TEST(CreateMemory, WithHugePagesAllBytesAreBackedAndZero) {
  constexpr std::size_t kHugePage = std::size_t{2} << 20;
  constexpr std::size_t kLarge = 2 * kHugePage + kBytes;
  const UniqueFd fd = create_memory("test", kLarge, Pages::huge).value();
  struct stat status {};
  ASSERT_EQ(fstat(fd.get(), &status), 0);
  EXPECT_EQ(std::size_t(status.st_size), kLarge);
  EXPECT_GE(std::size_t(status.st_blocks) * 512, kLarge)
      << "the memory has a hole, which would be a SIGBUS later";
  const auto map = MappedMemory::map(fd.get(), kLarge, Access::read_write, "test").value();
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(map.data()) % kHugePage, 0u)
      << "huge pages do not fit at this address";
  for (std::size_t i = 0; i < kLarge; i += 512) {
    ASSERT_EQ(map.data()[i], std::byte{0}) << i;
    map.data()[i] = std::byte(i / 512 % 251);
  }
  const auto other = MappedMemory::map(fd.get(), kLarge, Access::read_only, "test").value();
  other.populate();
  for (std::size_t i = 0; i < kLarge; i += 512)
    ASSERT_EQ(other.data()[i], std::byte(i / 512 % 251)) << i;
}

/// Bytes without memory between the first and the last byte that has some.
std::size_t holes_between(int fd, std::size_t backed) {
  off_t end = 0;
  for (off_t data = 0; (data = lseek(fd, end, SEEK_DATA)) >= 0;) end = lseek(fd, data, SEEK_HOLE);
  return std::max(std::size_t(end), backed) - backed;
}

/// Each thread takes parts of its own. Where the kernel has no more huge pages, each may have left
/// its last part.
TEST(TakeHugePages, LeavesNoHoleBetweenThreads) {
  constexpr std::size_t kThreads = 3, kPart = std::size_t{64} << 20;
  constexpr std::size_t kLarge = 12 * kPart + kHugePage / 2;
  const UniqueFd fd = open_memory("test").value();
  std::size_t asked = 0;
  take_huge_pages(fd.get(), kLarge, kThreads, [&asked] { return ++asked > 0; });
  EXPECT_GE(asked, 1u);
  struct stat status {};
  ASSERT_EQ(fstat(fd.get(), &status), 0);
  EXPECT_EQ(std::size_t(status.st_size), kLarge);
  const std::size_t backed = std::size_t(status.st_blocks) * 512;
  EXPECT_LE(holes_between(fd.get(), backed), kThreads * kPart) << backed << " of " << kLarge;
}

TEST(TakeHugePages, TakesNoneThatAreNotWanted) {
  const UniqueFd fd = open_memory("test").value();
  take_huge_pages(fd.get(), std::size_t{1} << 30, 1, [] { return false; });
  struct stat status {};
  ASSERT_EQ(fstat(fd.get(), &status), 0);
  EXPECT_EQ(status.st_blocks, 0);
}

TEST(CreateMemory, GivesUpWhenItIsNotWantedAnyMore) {
  constexpr std::size_t kLarge = std::size_t{400} << 20;
  for (const Pages pages : {Pages::usual, Pages::huge})
    for (const int answers : {0, 1}) {
      int asked = 0;
      const auto made =
          create_memory("test", kLarge, pages, [&] { return asked++ < answers; }).value();
      EXPECT_FALSE(made) << "after " << answers;
    }
}

TEST(MappedMemory, CanBeHiddenFromAForkedChild) {
  if (kUnderSanitizer) GTEST_SKIP() << "sanitizers handle SIGSEGV themselves";
  const UniqueFd fd = memory_of(kBytes);
  auto map = MappedMemory::map(fd.get(), kBytes, Access::read_write, "test").value();
  const auto touch = [&] { *const_cast<volatile std::byte*>(map.data()) = std::byte{1}; };
  EXPECT_TRUE(ended_well(ChildProcess(touch).wait()));
  map.hide_from_children();
  const int status = ChildProcess(touch).wait();
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
}

}  // namespace
}  // namespace kvhive::testing
