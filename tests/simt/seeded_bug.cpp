// seeded_bug NAME: runs the kernel with the seeded bug NAME ("none": the correct kernels in every
// order). Ends with 0 unless the emulator or a sanitizer reports it.

#include <cstdio>
#include <string_view>

#include "tests/simt/sample_run.hpp"

namespace kvhive::samples {
namespace {

constexpr struct {
  std::string_view name;
  Bug bug;
} kBugs[] = {
    {"missing_syncthreads", Bug::missing_syncthreads},
    {"missing_syncwarp", Bug::missing_syncwarp},
    {"divergent_barrier", Bug::divergent_barrier},
    {"exit_before_barrier", Bug::exit_before_barrier},
    {"wrong_shuffle_mask", Bug::wrong_shuffle_mask},
    {"exited_lane", Bug::exited_lane},
    {"mixed_intrinsics", Bug::mixed_intrinsics},
    {"shared_overflow", Bug::shared_overflow},
    {"global_overrun", Bug::global_overrun},
    {"misaligned_load", Bug::misaligned_load},
    {"misaligned_copy", Bug::misaligned_copy},
    {"shared_output", Bug::shared_output},
    {"missing_copy_wait", Bug::missing_copy_wait},
    {"missing_barrier_after_wait", Bug::missing_barrier_after_wait},
};

void run_correct_kernels() {
  for (const auto order : {simt::Order::forward, simt::Order::reverse, simt::Order::random})
    for (const auto delivery :
         {simt::Delivery::late, simt::Delivery::early, simt::Delivery::random}) {
      simt::options.order = order;
      simt::options.delivery = delivery;
      run_pass_around(Bug::none);
      run_copy_async(Bug::none);
      run_multiply(Bug::none);
    }
}

bool run(std::string_view name) {
  if (name == "none") return run_correct_kernels(), true;
  for (const auto& [known, bug] : kBugs)
    if (known == name) return run_with(bug), true;
  return false;
}

}  // namespace
}  // namespace kvhive::samples

int main(int count, char** words) try {
  if (count != 2 || !kvhive::samples::run(words[1])) {
    std::fprintf(stderr, "usage: seeded_bug NAME\n");
    return 2;
  }
  std::printf("no bug was reported\n");
  return 0;
} catch (const simt::Error& error) {
  std::printf("emulator: %s\n", error.what());
  return 1;
}
