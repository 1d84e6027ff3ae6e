#pragma once
// Runs a CUDA kernel on the CPU. Correct kernels give the same bits for every Options; kernels that
// miss a barrier or a wait mostly do not, and ThreadSanitizer builds say where.

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <tuple>
#include <type_traits>

#include "kernels/simt/kernel_calls.hpp"

namespace simt {

/// Which thread goes on, and which block comes first, where CUDA promises nothing.
enum class Order { forward, reverse, random };
/// When an asynchronous copy lands: at once, as late as it may, or either (by the seed).
enum class Delivery { late, early, random };

struct Options {
  Order order = Order::forward;
  Delivery delivery = Delivery::late;
  std::uint64_t seed = 1;
  unsigned workers = 1;                      ///< OS threads, a block each
  std::size_t max_shared_bytes = 227 << 10;  ///< sm_90's, as opted in to
};
/// For the launches that follow; not to be changed during one.
extern Options options;

/// What the kernel did wrong, and which threads wait where.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Blocks run so far, and what their threads did.
struct Statistics {
  std::uint64_t blocks, switches, barriers, warp_operations;
};
Statistics statistics();

/// entry(argument) once per thread of the grid. Throws Error.
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
