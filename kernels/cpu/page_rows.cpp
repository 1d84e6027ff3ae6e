#include "kernels/cpu/page_rows.hpp"

#include <cstring>

#include "kernels/page_address.hpp"

namespace kvhive {
namespace {

struct ToRow {
  const std::byte* page;
  std::byte* row;
  void move(std::int64_t in_page, std::int64_t in_row, std::size_t bytes) const {
    std::memcpy(row + in_row, page + in_page, bytes);
  }
};

struct ToPage {
  std::byte* page;
  const std::byte* row;
  void move(std::int64_t in_page, std::int64_t in_row, std::size_t bytes) const {
    std::memcpy(page + in_page, row + in_row, bytes);
  }
};

std::size_t row_bytes(const PagedKv& kv) {
  return static_cast<std::size_t>(kv.D) * bytes_of(kv.dtype);
}

/// Moves pairs of dims.
template <class Mover>
void move_packed_key_row(const PagedKv& kv, std::int64_t slot, const Mover& mover) {
  const std::int64_t first = slot / 16 * 512 + slot % 16 * 2;
  for (std::int64_t d = 0; d < kv.D; d += 32)
    for (std::int64_t pair = 0; pair < 16; ++pair) {
      const std::int64_t at = packed_offset(d * kv.S + first + pair * 32, kv.dtype);
      if (bytes_of(kv.dtype) == 1)
        mover.move(at, d + pair * 2, 2);
      else
        mover.move(at, (d + pair * 2) * 2, 4);
    }
}

/// Moves single elements: the other element of each pair belongs to another token.
template <std::size_t kElement, class Mover>
void move_packed_value_row(const PagedKv& kv, std::int64_t slot, const Mover& mover) {
  constexpr Dtype kAny = kElement == 1 ? Dtype::int8 : Dtype::bf16;
  const std::int64_t first = slot / 2 * 32 + slot % 2;
  for (std::int64_t d = 0; d < kv.D; d += 16)
    for (std::int64_t dim = 0; dim < 16; ++dim)
      mover.move(packed_offset(d * kv.S + first + dim * 2, kAny), (d + dim) * kElement, kElement);
}

template <class Mover>
void move_key_row(const PagedKv& kv, std::int64_t slot, const Mover& mover) {
  switch (kv.layout) {
    case PageLayout::rows: mover.move(slot * kv.token_stride, 0, row_bytes(kv)); return;
    case PageLayout::packed: return move_packed_key_row(kv, slot, mover);
  }
}

template <class Mover>
void move_value_row(const PagedKv& kv, std::int64_t slot, const Mover& mover) {
  switch (kv.layout) {
    case PageLayout::rows: mover.move(slot * kv.token_stride, 0, row_bytes(kv)); return;
    case PageLayout::packed:
      if (bytes_of(kv.dtype) == 1) return move_packed_value_row<1>(kv, slot, mover);
      return move_packed_value_row<2>(kv, slot, mover);
  }
}

}  // namespace

void read_key_row(const PagedKv& kv, const std::byte* page, std::int32_t slot, std::byte* row) {
  move_key_row(kv, slot, ToRow{page, row});
}

void read_value_row(const PagedKv& kv, const std::byte* page, std::int32_t slot, std::byte* row) {
  move_value_row(kv, slot, ToRow{page, row});
}

void write_key_row(const PagedKv& kv, const std::byte* row, std::int32_t slot, std::byte* page) {
  move_key_row(kv, slot, ToPage{page, row});
}

void write_value_row(const PagedKv& kv, const std::byte* row, std::int32_t slot, std::byte* page) {
  move_value_row(kv, slot, ToPage{page, row});
}

}  // namespace kvhive
