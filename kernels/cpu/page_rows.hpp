#pragma once
// Reads and writes rows of [D] in pages whose layout does not keep a token's elements side by side;
// the CPU kernels compute on rows. Faster than element by element, with the result that
// page_address.hpp defines.

#include <cstddef>
#include <cstdint>

#include "kernels/paged_kv.hpp"

namespace kvhive {

/// Copies the D elements of a slot of a page of K (or V) to `row`; any layout.
void read_key_row(const PagedKv& kv, const std::byte* page, std::int32_t slot, std::byte* row);
void read_value_row(const PagedKv& kv, const std::byte* page, std::int32_t slot, std::byte* row);

/// The other way: copies `row` into the slot.
void write_key_row(const PagedKv& kv, const std::byte* row, std::int32_t slot, std::byte* page);
void write_value_row(const PagedKv& kv, const std::byte* row, std::int32_t slot, std::byte* page);

}  // namespace kvhive
