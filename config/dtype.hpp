#pragma once
// Element types of weights, activations and KV, and the two narrow float conversions everybody
// needs.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace kvhive {

/// The last three are for KV only. e4m3 is the "fn" kind: no infinities, 448 at most.
enum class Dtype : std::uint8_t { f32 = 0, bf16 = 1, f16 = 2, e4m3 = 3, e5m2 = 4, int8 = 5 };

constexpr std::size_t bytes_of(Dtype dtype) {
  return dtype == Dtype::f32 ? 4 : dtype == Dtype::bf16 || dtype == Dtype::f16 ? 2 : 1;
}

constexpr std::string_view to_string(Dtype dtype) {
  switch (dtype) {
    case Dtype::f32: return "float32";
    case Dtype::bf16: return "bfloat16";
    case Dtype::f16: return "float16";
    case Dtype::e4m3: return "fp8_e4m3";
    case Dtype::e5m2: return "fp8_e5m2";
    case Dtype::int8: return "int8";
  }
  return "unknown";
}

/// Hugging Face's and vLLM's spellings ("bfloat16", "float16"/"half", "float32"/"float"); none of
/// those for KV only.
constexpr std::optional<Dtype> parse_dtype(std::string_view name) {
  if (name == "float32" || name == "float") return Dtype::f32;
  if (name == "bfloat16") return Dtype::bf16;
  if (name == "float16" || name == "half") return Dtype::f16;
  return std::nullopt;
}

/// vLLM's spellings of --kv-cache-dtype: the above, "fp8" (e4m3), "fp8_e4m3", "fp8_e5m2", "int8".
constexpr std::optional<Dtype> parse_kv_dtype(std::string_view name) {
  if (name == "fp8" || name == "fp8_e4m3") return Dtype::e4m3;
  if (name == "fp8_e5m2") return Dtype::e5m2;
  if (name == "int8") return Dtype::int8;
  return parse_dtype(name);
}

inline float float_of_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(std::uint32_t{bits} << 16);
}

/// Round to nearest, ties to even; NaN stays NaN.
inline std::uint16_t bf16_of_float(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline float float_of_f16(std::uint16_t half) {
  const std::uint32_t sign = std::uint32_t{half & 0x8000u} << 16;
  const std::uint32_t magnitude = half & 0x7fffu;
  if (magnitude >= 0x7c00u)
    return std::bit_cast<float>(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  if (magnitude < 0x0400u) {  // subnormal: value is magnitude * 2^-24, exact in float
    const float value = static_cast<float>(magnitude) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(value));
  }
  return std::bit_cast<float>(sign | ((magnitude + 0x1c000u) << 13));
}

/// Round to nearest, ties to even; overflow goes to infinity, NaN stays NaN.
inline std::uint16_t f16_of_float(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {  // subnormal or zero in f16: let the float adder do the rounding
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u));
  }
  const std::uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<std::uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

}  // namespace kvhive
