#include "device/ipc_record.hpp"

#include <gmock/gmock.h>
#include <sys/mman.h>
#include <unistd.h>

namespace kvhive {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t kBytes = 4096;

IpcHandle some_handle() {
  IpcHandle handle{};
  handle.front() = std::byte{1};
  handle.back() = std::byte{2};
  return handle;
}

TEST(IpcRecord, ReadsBackWhatWasWritten) {
  const UniqueFd record = *write_ipc_record(some_handle(), kBytes, "GPU-a");
  EXPECT_TRUE(is_ipc_record(record.get()));
  const auto handle = read_ipc_record(record.get(), kBytes, "GPU-a");
  ASSERT_TRUE(handle) << handle.error().text;
  EXPECT_EQ(*handle, some_handle());
}

/// Otherwise a process that gets the record could make others open another memory.
TEST(IpcRecord, IsSealed) {
  const UniqueFd record = *write_ipc_record(some_handle(), kBytes, "GPU-a");
  EXPECT_LT(pwrite(record.get(), "x", 1, 0), 0);
  EXPECT_LT(ftruncate(record.get(), 0), 0);
}

TEST(IpcRecord, OtherMemoryIsRefusedNamingBothSides) {
  const UniqueFd record = *write_ipc_record(some_handle(), kBytes, "GPU-a");
  const auto of_other_size = read_ipc_record(record.get(), 2 * kBytes, "GPU-a");
  ASSERT_FALSE(of_other_size);
  EXPECT_THAT(of_other_size.error().text, HasSubstr("4096 bytes, expected 8192"));
  const auto elsewhere = read_ipc_record(record.get(), kBytes, "GPU-b");
  ASSERT_FALSE(elsewhere);
  EXPECT_EQ(elsewhere.error().code, Errc::layout_mismatch);
  for (const char* text : {"on GPU-a", "on GPU-b", "CUDA_VISIBLE_DEVICES=GPU-a"})
    EXPECT_THAT(elsewhere.error().text, HasSubstr(text));
}

TEST(IpcRecord, AMemfdOfMemoryIsNotARecord) {
  const UniqueFd memory{memfd_create("memory", MFD_CLOEXEC | MFD_ALLOW_SEALING)};
  ASSERT_EQ(ftruncate(memory.get(), 144), 0);  // as long as a record
  EXPECT_FALSE(is_ipc_record(memory.get()));
  EXPECT_FALSE(read_ipc_record(memory.get(), kBytes, "GPU-a"));
  EXPECT_FALSE(is_ipc_record(-1));
}

}  // namespace
}  // namespace kvhive
