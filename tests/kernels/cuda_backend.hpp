#pragma once
// The CUDA backend as one of backends.hpp: it plans on the host and runs emulated, or on a GPU that
// can read the tests' own memory (tools/gpu).

#include "backend.hpp"

namespace kvhive::testing_support {

Backend cuda_backend();

}  // namespace kvhive::testing_support
