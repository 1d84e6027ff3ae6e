#pragma once
// SHA-256 of several pieces as if they were one, cut to 128 bits.

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>

namespace kvhive {

std::array<std::uint64_t, 2> sha256_128(std::initializer_list<std::span<const std::byte>> pieces);

}  // namespace kvhive
