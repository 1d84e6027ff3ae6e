#pragma once
// The sanitizer of this build. Tests with several processes are skipped under ThreadSanitizer,
// which sees one process only.

namespace kvhive::testing {

#ifdef __SANITIZE_THREAD__
inline constexpr bool kUnderThreadSanitizer = true;
#else
inline constexpr bool kUnderThreadSanitizer = false;
#endif
#ifdef __SANITIZE_ADDRESS__
inline constexpr bool kUnderAddressSanitizer = true;
#else
inline constexpr bool kUnderAddressSanitizer = false;
#endif
inline constexpr bool kUnderSanitizer = kUnderThreadSanitizer || kUnderAddressSanitizer;

}  // namespace kvhive::testing
