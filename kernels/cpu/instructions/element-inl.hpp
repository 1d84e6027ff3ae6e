// Loads elements of KV and activations as vectors of f32. Included once per instruction set.

#if defined(KVHIVE_ELEMENT_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef KVHIVE_ELEMENT_INL
#undef KVHIVE_ELEMENT_INL
#else
#define KVHIVE_ELEMENT_INL
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvhive {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET != HWY_SCALAR

// load() returns the value times 1 / kUnit. Where kHasPairs is true, load_pair() does two
// consecutive load()s in fewer operations.

/// Converts by way of f16, because that conversion handles subnormals at full speed.
/// Element::half(d, from) makes as many f16 as D has 16-bit lanes.
template <class Element>
struct PairOfHalves {
  static constexpr bool kHasPairs = true;
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const std::byte* from) {
    const hn::Rebind<std::int16_t, D> d16;
    const hn::Rebind<hwy::float16_t, D> df16;
    return hn::PromoteTo(d, hn::BitCast(df16, Element::half(d16, from)));
  }
  template <class D>
  static HWY_INLINE void load_pair(D d, const std::byte* from, hn::Vec<D>& first,
                                   hn::Vec<D>& second) {
    const hn::Repartition<std::int16_t, D> d16;
    const hn::Half<decltype(d16)> d16_half;
    const hn::Rebind<hwy::float16_t, D> df16;
    const auto both = Element::half(d16, from);
    first = hn::PromoteTo(d, hn::BitCast(df16, hn::LowerHalf(d16_half, both)));
    second = hn::PromoteTo(d, hn::BitCast(df16, hn::UpperHalf(d16_half, both)));
  }
};

struct F32Element {
  static constexpr bool kHasPairs = false;
  static constexpr std::size_t kBytes = 4;
  static constexpr float kUnit = 1;
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const std::byte* from) {
    return hn::LoadU(d, reinterpret_cast<const float*>(from));
  }
};

struct Bf16Element {
  static constexpr bool kHasPairs = false;
  static constexpr std::size_t kBytes = 2;
  static constexpr float kUnit = 1;
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const std::byte* from) {
    const hn::Rebind<std::uint16_t, D> du16;
    const hn::Rebind<std::uint32_t, D> du32;
    const auto bits = hn::LoadU(du16, reinterpret_cast<const std::uint16_t*>(from));
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du32, bits)));
  }
};

struct F16Element {
  static constexpr bool kHasPairs = false;
  static constexpr std::size_t kBytes = 2;
  static constexpr float kUnit = 1;
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const std::byte* from) {
    const hn::Rebind<hwy::float16_t, D> df16;
    return hn::PromoteTo(d, hn::LoadU(df16, reinterpret_cast<const hwy::float16_t*>(from)));
  }
};

/// The exponent's bias is 8 larger in f16 than in e4m3.
struct E4m3Element : PairOfHalves<E4m3Element> {
  static constexpr std::size_t kBytes = 1;
  static constexpr float kUnit = 256;
  template <class D16>
  static HWY_INLINE hn::Vec<D16> half(D16 d, const std::byte* from) {
    const hn::Rebind<std::int8_t, D16> di8;
    const auto code = hn::PromoteTo(d, hn::LoadU(di8, reinterpret_cast<const std::int8_t*>(from)));
    const auto moved =
        hn::And(hn::ShiftLeft<7>(code), hn::Set(d, static_cast<std::int16_t>(0xbf80)));
    // Only the code of NaN carries into this bit, which makes the exponent all ones: NaN in f16.
    const auto nan = hn::And(hn::Add(moved, hn::Set(d, 0x80)), hn::Set(d, 0x4000));
    return hn::Or(moved, nan);
  }
};

/// An e5m2 is the upper half of an f16.
struct E5m2Element : PairOfHalves<E5m2Element> {
  static constexpr std::size_t kBytes = 1;
  static constexpr float kUnit = 1;
  template <class D16>
  static HWY_INLINE hn::Vec<D16> half(D16 d, const std::byte* from) {
    const hn::Rebind<std::int8_t, D16> di8;
    const auto code = hn::PromoteTo(d, hn::LoadU(di8, reinterpret_cast<const std::int8_t*>(from)));
    return hn::ShiftLeft<8>(code);
  }
};

struct Int8Element {
  static constexpr bool kHasPairs = false;
  static constexpr std::size_t kBytes = 1;
  static constexpr float kUnit = 1;
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const std::byte* from) {
    const hn::Rebind<std::int8_t, D> di8;
    const hn::Rebind<std::int32_t, D> di32;
    return hn::ConvertTo(
        d, hn::PromoteTo(di32, hn::LoadU(di8, reinterpret_cast<const std::int8_t*>(from))));
  }
};

#endif  // HWY_TARGET != HWY_SCALAR

}  // namespace HWY_NAMESPACE
}  // namespace kvhive
HWY_AFTER_NAMESPACE();

#endif  // KVHIVE_ELEMENT_INL
