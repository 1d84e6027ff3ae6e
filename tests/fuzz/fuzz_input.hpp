#pragma once
// A fuzzer's bytes, taken piece by piece from the front. Bytes after the end read as zero.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

namespace kvhive::testing {

class FuzzInput {
 public:
  FuzzInput(const std::uint8_t* data, std::size_t size) : left_{data, size} {}

  /// Fills `to` as far as the input reaches; returns how many bytes that were.
  std::size_t fill(std::span<std::byte> to) {
    const std::size_t taken = std::min(to.size(), left_.size());
    if (taken != 0) std::memcpy(to.data(), left_.data(), taken);
    left_ = left_.subspan(taken);
    return taken;
  }

  template <typename Value>
  Value take() {
    Value value{};
    fill(std::as_writable_bytes(std::span(&value, 1)));
    return value;
  }

  std::string rest() const { return {reinterpret_cast<const char*>(left_.data()), left_.size()}; }
  bool is_empty() const { return left_.empty(); }

 private:
  std::span<const std::uint8_t> left_;
};

}  // namespace kvhive::testing
