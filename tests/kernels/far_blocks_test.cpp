// Caches larger than 2^31 elements: no offset may be computed in 32 bits.

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "backends.hpp"
#include "kernels/element.hpp"
#include "kv_fixture.hpp"

namespace kvhive {
namespace {

using namespace testing_support;

/// Reserved address space; a page takes memory when it is first written.
class SparseMemory {
 public:
  explicit SparseMemory(std::size_t bytes) : bytes_(bytes) {
    data_ = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  ~SparseMemory() {
    if (is_mapped()) ::munmap(data_, bytes_);
  }
  SparseMemory(const SparseMemory&) = delete;
  SparseMemory& operator=(const SparseMemory&) = delete;

  bool is_mapped() const { return data_ != MAP_FAILED; }
  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  void* data_;
  std::size_t bytes_;
};

class FarBlocks : public testing::TestWithParam<Backend> {};

TEST_P(FarBlocks, GiveTheSameResultsAsNearOnes) {
  constexpr std::int64_t kFar = std::int64_t{3} << 30;  // bytes from one block to the next
  constexpr std::int32_t kBlocks = 4, kTokens = 40, H = 4, G = 2, D = 64, S = 16;
  const SparseMemory memory(kBlocks * kFar);
  if (!memory.is_mapped()) GTEST_SKIP() << "no address space of 12 GiB";

  for (const Dtype dtype : {Dtype::bf16, Dtype::e4m3}) {
    PagedArena arena({.dtype = dtype, .G = G, .D = D, .S = S}, kBlocks);
    const PagedKv near = arena.kv();
    PagedKv far = near;
    far.block_stride = kFar;
    far.k = memory.data();
    far.v = memory.data() + (near.v - near.k);
    if (!GetParam().takes(near, Dtype::f32)) continue;

    const std::vector<BlockId> table{{3}, {0}, {2}};
    std::vector<std::int64_t> slots;
    std::vector<float> kv(std::size_t{kTokens} * G * D), q(H * D);
    for (std::size_t i = 0; i < kv.size(); ++i) kv[i] = static_cast<float>(i * 37 % 101) / 50 - 1;
    for (std::size_t i = 0; i < q.size(); ++i) q[i] = static_cast<float>(i * 53 % 103) / 50 - 1;
    for (std::int32_t t = 0; t < kTokens; ++t)
      slots.push_back(std::int64_t{table[t / S].value} * S + t % S);
    const std::int32_t query_start[] = {0, 1}, kv_len = kTokens;

    const auto write_and_attend = [&](const PagedKv& cache) {
      GetParam().write({kv.data(), kv.data(), slots.data(), cache, kTokens, Dtype::f32});
      std::vector<float> out(H * D);
      PagedAttentionArgs args;
      args.q = q.data();
      args.kv = cache;
      args.block_table = table.data();
      args.query_start = query_start;
      args.kv_len = &kv_len;
      args.out = out.data();
      args.B = 1;
      args.H = H;
      args.M = 3;
      GetParam().attention(args);
      return out;
    };
    EXPECT_TRUE(same_bits(write_and_attend(near), write_and_attend(far))) << to_string(dtype);
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, FarBlocks, testing::ValuesIn(kBackends),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace kvhive
