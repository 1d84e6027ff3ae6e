#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "config/fp8.hpp"
#include "kernels/arguments.hpp"
#include "kernels/cache_write.hpp"
#include "kernels/cpu/convert_row.hpp"
#include "kernels/cpu/instructions/cpu_features.hpp"
#include "kernels/cpu/packed/packed_write.hpp"
#include "kernels/cpu/page_rows.hpp"
#include "kernels/cpu/stream_copy.hpp"
#include "kernels/page_address.hpp"
#include "kernels/paged_attention.hpp"

namespace kvhive {
namespace {

/// Below this, waking other threads costs more than they save.
constexpr std::int64_t kSerialElements = 1 << 14;
/// Calls that write more than this bypass the caches.
constexpr std::int64_t kStreamBytes = 8 << 20;
/// Slots that are written together: one token group of PageLayout::packed.
constexpr std::int64_t kGroupSlots = 16;

/// Tokens first..first+count-1, which go to consecutive slots of one group of slots.
struct Run {
  std::int32_t first = 0;
  std::int32_t count = 0;
  std::int64_t slot_id = 0;  ///< of the first token
};

std::vector<Run> find_runs(const CacheWriteArgs& args) {
  std::vector<Run> runs;
  runs.reserve(static_cast<std::size_t>(args.T) / kGroupSlots + 2);
  std::int64_t next_slot_id = -2;  // the slot that would continue the last run
  for (std::int32_t t = 0, end = 0; t < args.T; ++t) {
    const std::int64_t slot_id = args.slot_mapping[t];
    if (slot_id == next_slot_id && t < end) {
      ++runs.back().count;
    } else if (slot_id >= 0) {
      const std::int64_t slot = slot_id % args.kv.S;
      const std::int64_t room = std::min(kGroupSlots - slot % kGroupSlots, args.kv.S - slot);
      end = t + static_cast<std::int32_t>(room);
      runs.push_back({t, 1, slot_id});
    }
    next_slot_id = slot_id < 0 ? -2 : slot_id + 1;
  }
  return runs;
}

/// K or V of one call.
struct Plane {
  const std::byte* values;  ///< [T, G, D] of in_dtype
  std::byte* base;
  float* scales;
  void (*write_row)(const PagedKv&, const std::byte*, std::int32_t, std::byte*);
  GroupWriter write_group;  ///< null where the CPU or the types have none
  std::int64_t (*element_offset)(const PagedKv&, std::int64_t, std::int64_t);
};

/// One thread's buffers for the rows of one head.
struct RowBuffers {
  explicit RowBuffers(const PagedKv& kv)
      : row_bytes(kv.D * bytes_of(kv.dtype)), floats(kv.D), stored(kGroupSlots * row_bytes) {}

  std::byte* row(std::int32_t i) { return stored.data() + i * row_bytes; }

  std::size_t row_bytes;
  std::vector<float> floats;
  std::vector<std::byte> stored;  ///< as the cache stores them
};

/// Divides by the scale and rounds. Where each token has a scale, computes it and writes it to
/// `*scale`.
void convert(const CacheWriteArgs& args, const std::byte* from, float* scale, RowBuffers& buffers,
             std::byte* to) {
  const auto D = static_cast<std::size_t>(args.kv.D);
  const auto* floats = reinterpret_cast<const float*>(from);
  if (args.in_dtype != Dtype::f32) {
    widen(from, args.in_dtype, D, buffers.floats.data());
    floats = buffers.floats.data();
  }
  if (args.kv.scales.are_per_token()) {
    const float made = largest_magnitude(floats, D) / largest_of(args.kv.dtype);
    *scale = made > 0 ? made : 1.0f;
  }
  narrow(floats, scale ? *scale : 1.0f, D, args.kv.dtype, to);
}

/// The row of (token t, head g) as the cache stores it: the caller's own if no conversion is
/// needed, else converted into `buffer`.
const std::byte* stored_row(const CacheWriteArgs& args, const Plane& plane, std::int32_t t,
                            std::int64_t slot_id, std::int32_t g, RowBuffers& buffers,
                            std::byte* buffer) {
  const PagedKv& kv = args.kv;
  const std::byte* from =
      plane.values + (std::int64_t{t} * kv.G + g) * kv.D * std::int64_t(bytes_of(args.in_dtype));
  if (args.in_dtype == kv.dtype) return from;
  float* scale =
      plane.scales ? scale_at(kv.scales, plane.scales, slot_id / kv.S, g, slot_id % kv.S) : nullptr;
  convert(args, from, scale, buffers, buffer);
  return buffer;
}

bool is_aligned(const std::byte* at) { return reinterpret_cast<std::uintptr_t>(at) % 64 == 0; }

/// Writes the runs in the order of the values, which is the fastest order to read them in.
void write_rows(const CacheWriteArgs& args, const Plane& plane, const Run& run, Stores stores,
                RowBuffers& buffers) {
  const PagedKv& kv = args.kv;
  const bool streams = stores == Stores::streamed && buffers.row_bytes % 64 == 0;
  for (std::int32_t i = 0; i < run.count; ++i)
    for (std::int32_t g = 0; g < kv.G; ++g) {
      const std::int64_t slot_id = run.slot_id + i;
      std::byte* to =
          plane.base + page_offset(kv, slot_id / kv.S, g) + slot_id % kv.S * kv.token_stride;
      const std::byte* row =
          stored_row(args, plane, run.first + i, slot_id, g, buffers, buffers.row(0));
      if (streams && is_aligned(to))
        stream_copy(row, to, buffers.row_bytes, nullptr, CopyWay::one_run);
      else
        std::memcpy(to, row, buffers.row_bytes);
    }
}

/// Writes one head of a run into pages that do not keep rows. Reading head by head jumps through
/// the values, so each head also prefetches a G-th of the `next` run's values, in their order.
void write_head(const CacheWriteArgs& args, const Plane& plane, const Run& run, const Run& next,
                std::int32_t g, Stores stores, WriteWay way, RowBuffers& buffers) {
  const PagedKv& kv = args.kv;
  std::byte* page = plane.base + page_offset(kv, run.slot_id / kv.S, g);
  const auto slot = static_cast<std::int32_t>(run.slot_id % kv.S);
  if (plane.write_group != nullptr && run.count == kGroupSlots && is_aligned(page)) {
    const std::int64_t row_bytes = kv.D * static_cast<std::int64_t>(bytes_of(args.in_dtype));
    const TokenRows rows{
        .first = plane.values + (std::int64_t{run.first} * kv.G + g) * row_bytes,
        .stride = kv.G * row_bytes,
        .D = kv.D,
        .next = plane.values + (std::int64_t{next.first} * kv.G + g * kGroupSlots) * row_bytes};
    return plane.write_group(rows, page + plane.element_offset(kv, slot, 0), kv.S, stores, way);
  }
  for (std::int32_t i = 0; i < run.count; ++i)
    plane.write_row(
        kv, stored_row(args, plane, run.first + i, run.slot_id + i, g, buffers, buffers.row(i)),
        slot + i, page);
}

/// Writes of whole groups to PageLayout::packed, without a buffer between.
struct GroupWriters {
  GroupWriter key = nullptr;
  GroupWriter value = nullptr;
};

GroupWriters group_writers(const CacheWriteArgs& args) {
  const PagedKv& kv = args.kv;
  const bool is_packed = kv.layout == PageLayout::packed && kv.dtype == Dtype::bf16 &&
                         fastest_page_layout(kv.S, kv.D, kv.dtype) == kv.layout;
  // Packed pages are also written where their attention is only emulated.
  if (!cpu_features().avx512_bf16) return {};
  const PackedWriters& writers = native::kPackedWriters;
  if (is_packed && args.in_dtype == Dtype::bf16) return {writers.keys, writers.values};
  if (is_packed && args.in_dtype == Dtype::f32) return {writers.float_keys, writers.float_values};
  return {};
}

}  // namespace

void cache_write_cpu(const CacheWriteArgs& args) {
  check_arguments(args);
  const PagedKv& kv = args.kv;
  const std::int64_t elements = std::int64_t{args.T} * kv.G * kv.D;
  const Stores stores = 2 * elements * static_cast<std::int64_t>(bytes_of(kv.dtype)) > kStreamBytes
                            ? Stores::streamed
                            : Stores::cached;
  const GroupWriters groups = group_writers(args);
  const WriteWay way =
      groups.key != nullptr && stores == Stores::streamed ? write_way().way : WriteWay::by_tokens;
  const Plane planes[] = {{static_cast<const std::byte*>(args.k), kv.k, kv.scales.k, write_key_row,
                           groups.key, key_offset},
                          {static_cast<const std::byte*>(args.v), kv.v, kv.scales.v,
                           write_value_row, groups.value, value_offset}};
  const std::vector<Run> runs = find_runs(args);
#pragma omp parallel if (elements > kSerialElements)
  {
    RowBuffers buffers(kv);
    for (const Plane& plane : planes)
#pragma omp for schedule(static) nowait
      for (std::size_t i = 0; i < runs.size(); ++i) {
        if (kv.layout == PageLayout::rows) {
          write_rows(args, plane, runs[i], stores, buffers);
          continue;
        }
        const Run& next = runs[std::min(i + 1, runs.size() - 1)];
        for (std::int32_t g = 0; g < kv.G; ++g)
          write_head(args, plane, runs[i], next, g, stores, way, buffers);
      }
    end_streams();
  }
}

}  // namespace kvhive
