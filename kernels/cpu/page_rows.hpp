#pragma once
// Pages whose layout does not keep a token's elements side by side, as rows of [D]: the CPU kernels
// compute on rows. Faster than element by element, and the same as page_address.hpp says.

#include <cstddef>
#include <cstdint>

#include "kernels/paged_kv.hpp"

namespace kvhive {

/// Copies the D elements of a slot of a page of K (or V) to `row`; any layout.
void read_key_row(const PagedKv& kv, const std::byte* page, std::int32_t slot, std::byte* row);
void read_value_row(const PagedKv& kv, const std::byte* page, std::int32_t slot, std::byte* row);

/// The other way.
void write_key_row(const PagedKv& kv, const std::byte* row, std::int32_t slot, std::byte* page);
void write_value_row(const PagedKv& kv, const std::byte* row, std::int32_t slot, std::byte* page);

}  // namespace kvhive
