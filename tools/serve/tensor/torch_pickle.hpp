#pragma once
// Which tensor an archive of torch.save() describes: its data.pkl, a program for Python's pickle
// machine. This reader is no such machine. It knows the few instructions and names that one dense
// tensor takes, executes nothing, and refuses all else.
//
// Source: the instructions, Python's pickletools; the names, torch/_utils.py (_rebuild_tensor_v2,
// _rebuild_parameter) and torch/serialization.py (persistent_id).

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/expected.hpp"
#include "config/dtype.hpp"

namespace kvhive {

/// As it is written there: no number was compared with another yet.
struct TorchTensor {
  Dtype dtype = Dtype::f32;        ///< of its storage: f32, bf16 or f16
  std::string storage;             ///< the name below data/ of what has its values
  std::uint64_t storage_size = 0;  ///< values
  std::uint64_t offset = 0;        ///< of its first value, in values, as the strides
  std::vector<std::uint64_t> sizes, strides;
};

/// An error's text goes on behind the name of what was read.
[[nodiscard]] Expected<TorchTensor> read_torch_pickle(std::string_view pickle);

}  // namespace kvhive
