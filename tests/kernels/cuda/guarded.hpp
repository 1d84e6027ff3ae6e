#pragma once
// Memory for a kernel's arguments, with a guard behind it that must not change.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "tests/kernels/cuda/stored_element.hpp"

namespace kvhive::testing_support {

/// `count` elements filled with poison, and a guard of poison behind them.
class Guarded {
 public:
  Guarded(std::size_t count, Dtype dtype)
      : dtype_(dtype), bytes_(count * bytes_of(dtype)), memory_(bytes_ + kTail, kPoison) {}
  Guarded(std::span<const float> values, Dtype dtype) : Guarded(values.size(), dtype) {
    for (std::size_t i = 0; i < values.size(); ++i)
      store_element(&memory_[i * bytes_of(dtype)], dtype, values[i]);
  }

  std::byte* data() { return memory_.data(); }
  template <class T>
  T* as() {
    return reinterpret_cast<T*>(memory_.data());
  }
  float operator[](std::size_t i) const {
    return load_element(&memory_[i * bytes_of(dtype_)], dtype_);
  }
  std::size_t size() const { return bytes_ / bytes_of(dtype_); }
  std::span<const std::byte> bytes() const { return std::span(memory_).first(bytes_); }
  /// Elements first..first+count-1.
  std::vector<std::byte> slice(std::size_t first, std::size_t count) const {
    const auto part = bytes().subspan(first * bytes_of(dtype_), count * bytes_of(dtype_));
    return {part.begin(), part.end()};
  }
  bool is_tail_intact() const {
    return std::all_of(memory_.begin() + static_cast<std::ptrdiff_t>(bytes_), memory_.end(),
                       [](std::byte b) { return b == kPoison; });
  }
  bool operator==(const Guarded&) const = default;

 private:
  static constexpr std::size_t kTail = 64;
  static constexpr std::byte kPoison{0xee};

  Dtype dtype_;
  std::size_t bytes_;
  std::vector<std::byte> memory_;
};

inline std::vector<float> random_floats(std::size_t count, unsigned seed, float scale = 1.0f) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

}  // namespace kvhive::testing_support
