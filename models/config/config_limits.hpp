#pragma once
// The largest numbers that are taken from a config.json: far above those of any model, and so small
// that sizes made of them fit their types.

#include <cstdint>

namespace kvhive {

inline constexpr std::int64_t kMaxWidth = 1 << 20;
inline constexpr std::int64_t kMaxLayers = 1024;
inline constexpr std::int64_t kMaxHeads = 4096;
inline constexpr std::int64_t kMaxHeadSize = 1024;
inline constexpr std::int64_t kMaxVocab = 1 << 24;
inline constexpr std::int64_t kMaxPositions = std::int64_t{1} << 30;
inline constexpr std::int64_t kMaxExperts = 4096;

}  // namespace kvhive
