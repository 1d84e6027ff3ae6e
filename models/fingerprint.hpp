#pragma once
// Which model a pool's KV belongs to, in 64 bits.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/expected.hpp"

namespace kvhive {

/// The directory's safetensors files, in the order of their names.
[[nodiscard]] Expected<std::vector<std::filesystem::path>> weight_files(
    const std::filesystem::path& directory);

/// Hash of config.json and of every safetensors file: its size, its header, its small tensors
/// (scales that were measured anew change nothing else), and 4 KiB out of every 1/64 of its data
/// (reading all of a large model would take longer than loading it). Two directories with equal
/// fingerprints give equal KV; the directory's name does not matter.
[[nodiscard]] Expected<std::uint64_t> model_fingerprint(const std::filesystem::path& directory);

/// The same for KV that is computed by that arithmetic (config/cpu_kernels.hpp).
std::uint64_t with_arithmetic(std::uint64_t fingerprint, std::string_view arithmetic);

/// The same with one adapter more: with the name that requests call it by, and its two files, read
/// in whole. Blocks are shared by an adapter's name, so every engine must have the same behind it.
[[nodiscard]] Expected<std::uint64_t> with_adapter(std::uint64_t fingerprint,
                                                   const std::string& name,
                                                   const std::filesystem::path& directory);

}  // namespace kvhive
