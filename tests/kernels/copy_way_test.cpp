#include "kernels/copy_way.hpp"

#include "kernels/cpu/instructions/cpu_kernels.hpp"
#include "kernels/cpu/instructions/dot_way.hpp"

#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <ctime>
#include <set>
#include <vector>

#include "kernels/paged_attention.hpp"

namespace kvhive {
namespace {

double thread_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

template <class Way>
void expect_the_fastest(const ChosenWay<Way>& chosen) {
  for (const double rate : chosen.rates) {
    EXPECT_GT(rate, 0);
    EXPECT_GE(chosen.rates[static_cast<std::size_t>(chosen.way)], rate);
  }
}

TEST(CopyWay, IsTheOneThatWasMeasuredToBeTheFastest) { expect_the_fastest(copy_way()); }

TEST(CopyWay, IsMeasuredOnceForAllThreads) {
  std::vector<double> rates(8);
#pragma omp parallel for num_threads(8)
  for (std::size_t i = 0; i < rates.size(); ++i) rates[i] = copy_way().rates[0];
  EXPECT_EQ(std::set(rates.begin(), rates.end()).size(), 1u);
  // A second measurement would take milliseconds.
  const double start = thread_seconds();
  for (int i = 0; i < 1000; ++i) copy_way();
  EXPECT_LT(thread_seconds() - start, 0.5);
}

TEST(CopyWay, CanBeForced) {
  const ChosenWay<CopyWay> measured = copy_way();
  for (const CopyWay way : {CopyWay::one_run, CopyWay::four_pages}) {
    force_copy_way(way);
    EXPECT_EQ(copy_way().way, way);
    EXPECT_EQ(copy_way().rates[0], 0);
  }
  force_copy_way({});
  EXPECT_EQ(copy_way().way, measured.way);
  EXPECT_EQ(copy_way().rates, measured.rates);
}

TEST(WriteWay, IsTheOneThatWasMeasuredToBeTheFastest) {
  if (fastest_page_layout(16, 128, Dtype::bf16) == PageLayout::packed)
    expect_the_fastest(write_way());
  else
    EXPECT_EQ(write_way().rates[0], 0) << "there are no such pages on this CPU";
}

TEST(DotWay, IsMeasuredWhereTheInstructionIs) {
  const ChosenWay<DotWay> chosen = dot_way();
  for (const double rate : chosen.rates)
    EXPECT_EQ(rate > 0, grants(CpuKernels::avx512_bf16)) << rate;
  if (chosen.rates[1] < chosen.rates[0]) {
    EXPECT_EQ(chosen.way, DotWay::instruction);
  }
  if (chosen.rates[1] > 1.6 * chosen.rates[0]) {
    EXPECT_EQ(chosen.way, DotWay::multiplications);
  }
}

TEST(DotWay, CanBeForced) {
  const DotWay measured = dot_way().way;
  for (const DotWay way : {DotWay::instruction, DotWay::multiplications}) {
    force_dot_way(way);
    EXPECT_EQ(dot_way().way, way);
  }
  force_dot_way({});
  EXPECT_EQ(dot_way().way, measured);
}

TEST(WriteWay, CanBeForced) {
  for (const WriteWay way : {WriteWay::by_tokens, WriteWay::by_lines}) {
    force_write_way(way);
    EXPECT_EQ(write_way().way, way);
  }
  force_write_way({});
}

}  // namespace
}  // namespace kvhive
