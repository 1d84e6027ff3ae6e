#pragma once
// Element types of weights, activations and KV, and the conversions between float and the two
// 16-bit float types.

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace kvhive {

/// The last three are for KV only. e4m3 is the "fn" variant: no infinities, largest value 448.
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

/// A model's element type in Hugging Face's spellings: "bfloat16", "float16" or "half", "float32"
/// or "float". Types that are for KV only have no such name.
constexpr std::optional<Dtype> parse_dtype(std::string_view name) {
  if (name == "float32" || name == "float") return Dtype::f32;
  if (name == "bfloat16") return Dtype::bf16;
  if (name == "float16" || name == "half") return Dtype::f16;
  return std::nullopt;
}

/// The element type asked for with --kv-cache-dtype, in vLLM's spellings. fp8 is another name of
/// fp8_e4m3.
enum class KvCacheDtype : std::uint8_t { of_model, f32, bf16, f16, fp8, e4m3, e5m2, int8 };
constexpr std::array<std::string_view, 8> names_of(KvCacheDtype) {
  return {"auto", "float32", "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2", "int8"};
}

/// The element type of the KV of a model with weights of type `of_model`.
constexpr Dtype kv_dtype(KvCacheDtype asked, Dtype of_model) {
  switch (asked) {
    case KvCacheDtype::of_model: return of_model;
    case KvCacheDtype::f32: return Dtype::f32;
    case KvCacheDtype::bf16: return Dtype::bf16;
    case KvCacheDtype::f16: return Dtype::f16;
    case KvCacheDtype::fp8:
    case KvCacheDtype::e4m3: return Dtype::e4m3;
    case KvCacheDtype::e5m2: return Dtype::e5m2;
    case KvCacheDtype::int8: return Dtype::int8;
  }
  return of_model;
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
