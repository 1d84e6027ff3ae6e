#pragma once
// The CUDA backend for backends.hpp. It plans on the host and runs on the emulator, or on a GPU
// that can read the tests' memory (tools/gpu).

#include "backend.hpp"

namespace kvhive::testing_support {

Backend cuda_backend();

}  // namespace kvhive::testing_support
