#pragma once
// Of internal linkage (README.md).

#include <xmmintrin.h>

namespace kvhive {
namespace {

/// Denormals are 0 for this thread as long as this lives. They are 0 for VDPBF16PS; so in all that
/// is computed around dot products, both ways of computing them (dots.hpp) give the same bits.
class WithoutDenormals {
 public:
  WithoutDenormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | kFlushed | kTakenAsZero); }
  ~WithoutDenormals() { _mm_setcsr(before_); }
  WithoutDenormals(const WithoutDenormals&) = delete;
  WithoutDenormals& operator=(const WithoutDenormals&) = delete;

 private:
  static constexpr unsigned kFlushed = 0x8000, kTakenAsZero = 0x0040;

  unsigned before_;
};

}  // namespace
}  // namespace kvhive
