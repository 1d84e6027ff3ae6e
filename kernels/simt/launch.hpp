#pragma once
// Runs a CUDA kernel on the CPU. A correct kernel gives the same bits for all Options. A kernel
// that lacks a barrier or a wait gives different bits for most of them, and ThreadSanitizer builds
// report where.

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <tuple>
#include <type_traits>

#include "kernels/simt/kernel_calls.hpp"

namespace simt {

/// The order of threads and of blocks where CUDA leaves it open.
enum class Order { forward, reverse, random };
/// When an asynchronous copy lands: as late as possible, at once, or either (by the seed).
enum class Delivery { late, early, random };

struct Options {
  Order order = Order::forward;
  Delivery delivery = Delivery::late;
  std::uint64_t seed = 1;
  unsigned workers = 1;                      ///< OS threads; each runs one block at a time
  std::size_t max_shared_bytes = 227 << 10;  ///< what a kernel may request on sm_90
};
/// Used by all launches that follow. Must not change during a launch.
extern Options options;

/// What the kernel did wrong, and where its threads wait.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Counts since the program started.
struct Statistics {
  std::uint64_t blocks, switches, barriers, warp_operations;
};
Statistics statistics();

/// Calls entry(argument) once for each thread of the grid. Throws Error.
void run_grid(void (*entry)(const void*), const void* argument, Dim3 grid, Dim3 block,
              std::size_t shared_bytes);

template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), Dim3 grid, Dim3 block, std::size_t shared_bytes,
            const Arguments&... arguments) {
  struct Call {
    void (*kernel)(Parameters...);
    std::tuple<std::remove_cv_t<Parameters>...> parameters;
  };
  const Call call{kernel, {static_cast<std::remove_cv_t<Parameters>>(arguments)...}};
  run_grid(
      [](const void* argument) {
        const Call& thread_call = *static_cast<const Call*>(argument);
        std::apply(thread_call.kernel, thread_call.parameters);
      },
      &call, grid, block, shared_bytes);
}

}  // namespace simt
