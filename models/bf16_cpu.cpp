#include "models/bf16_product.hpp"

namespace kvhive {

// Not in bf16_product.cpp, which any other CPU must not run a line of.
bool prefers_bf16_product() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512bf16") && !__builtin_cpu_supports("amx-bf16");
}

}  // namespace kvhive
