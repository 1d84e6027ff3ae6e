#pragma once
// The operands of the tensor core: a warp's sixteen rows of q with the keys of sixteen tokens, then
// the weights with the values. Fragments as in the PTX ISA, "mma.m16n8k16".
//
// Chunk c (16 bytes) of row r of a tile is stored at c ^ (r % 8), within each 8 chunks: ldmatrix
// then reads 8 rows from 8 different banks.

#include <bit>

#include "kernels/cuda/element.cuh"

namespace kvhive::device {

inline constexpr int kMmaRows = 16;
inline constexpr int kMmaTokens = 16;

template <Dtype kKv, int D>
struct MmaTile {
  static constexpr int kChunks = D * static_cast<int>(bytes_of(kKv)) / 16;  ///< per row
  static constexpr int kRowBytes =
      (kChunks + 7) / 8 * 128;  ///< rounded up to whole groups of 8 chunks

  static __device__ __forceinline__ int place(int row, int chunk) {
    return row * kRowBytes + ((chunk & ~7) | ((chunk ^ row) & 7)) * 16;
  }
};

template <Dtype kKv>
__device__ __forceinline__ void multiply_add(float (&d)[4], const std::uint32_t (&a)[4],
                                             const std::uint32_t (&b)[2] KV_ALSO_CALLER) {
  if constexpr (kKv == Dtype::bf16)
    mma_bf16(d, a, b KV_FORWARD_CALLER);
  else
    mma_f16(d, a, b KV_FORWARD_CALLER);
}

/// The bytes of x in the order 0, 2, 1, 3.
__device__ __forceinline__ std::uint32_t swap_middle_bytes(std::uint32_t x) {
  return (x & 0xff0000ffu) | (x & 0xff0000u) >> 8 | (x & 0xff00u) << 8;
}

/// A warp's result: rows lane/4 (half 0) and lane/4 + 8 (half 1), D/4 elements of each per lane.
template <int D>
using MmaResult = float[D / 8][4];

/// The first operand, q: D/16 fragments per warp. For large D, where registers are short, each lane
/// keeps its fragments in shared memory.
template <int D>
class MmaQueries {
 public:
  static constexpr bool kIsShared = D > 128;
  static constexpr int kSharedBytes = kIsShared ? D / 16 * kWarp * 16 : 0;

  /// \param shared kSharedBytes for this warp
  __device__ __forceinline__ MmaQueries(std::byte* shared, int lane)
      : shared_(reinterpret_cast<Bytes16*>(shared) + lane) {}

  __device__ __forceinline__ void set(int kk, const std::uint32_t (&fragment)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if constexpr (kIsShared)
        shared_[kk * kWarp].words[i] = fragment[i];
      else
        registers_[kk][i] = fragment[i];
  }
  __device__ __forceinline__ void get(int kk, std::uint32_t (&fragment)[4]) const {
    Bytes16 bytes;
    if constexpr (kIsShared) bytes = shared_[kk * kWarp];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if constexpr (kIsShared)
        fragment[i] = bytes.words[i];
      else
        fragment[i] = registers_[kk][i];
  }

 private:
  Bytes16* shared_;
  std::uint32_t registers_[kIsShared ? 1 : D / 16][4];
};

/// For 16-bit elements; q has the same type.
template <Dtype kKv, int D>
struct MmaOperands {
  using Tile = MmaTile<kKv, D>;
  static constexpr Dtype kWeights = kKv;

  /// Register i of lane l holds row l/4 + i%2*8, columns l%4*2 + i/2*8 and the next.
  ///
  /// \param rows the lane's two rows of args.q; null: zeros
  /// \param factors receives what the products of each row must be multiplied by
  static __device__ __forceinline__ void load_q(const void* const (&rows)[2], int lane, Dtype,
                                                MmaQueries<D>& q, float (&factors)[2]) {
    factors[0] = factors[1] = 1.0f;
#pragma unroll
    for (int kk = 0; kk < D / 16; ++kk) {
      std::uint32_t fragment[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const auto* pairs = static_cast<const std::uint32_t*>(rows[i % 2]);
        fragment[i] = pairs != nullptr ? pairs[kk * 8 + lane % 4 + i / 2 * 4] : 0;
      }
      q.set(kk, fragment);
    }
  }

  /// scores[n][e] is the score of row lane/4 + e/2*8 and token n*8 + lane%4*2 + e%2.
  static __device__ __forceinline__ void score(const MmaQueries<D>& q, const std::byte* keys,
                                               int lane, float (&scores)[2][4]) {
#pragma unroll
    for (int kk = 0; kk < D / 16; ++kk) {
      std::uint32_t a[4], k[4];  // k: tokens 0..7 (dims low, high), tokens 8..15
      q.get(kk, a);
      load_matrices(k, keys + Tile::place(lane / 16 * 8 + lane % 8, kk * 2 + lane / 8 % 2));
      multiply_add<kKv>(scores[0], a, {k[0], k[1]});
      multiply_add<kKv>(scores[1], a, {k[2], k[3]});
    }
  }

  static __device__ __forceinline__ void add_values(const std::uint32_t (&weights)[4],
                                                    const std::byte* values, int lane,
                                                    MmaResult<D>& acc) {
#pragma unroll
    for (int n = 0; n < D / 16; ++n) {
      std::uint32_t v[4];  // dims 0..7 (tokens low, high), dims 8..15
      load_matrices_transposed(v, values + Tile::place(lane % 16, n * 2 + lane / 16));
      multiply_add<kKv>(acc[2 * n], weights, {v[0], v[1]});
      multiply_add<kKv>(acc[2 * n + 1], weights, {v[2], v[3]});
    }
  }

  /// Pair i (of D/8) of a lane's row is dims first_dim(i, lane) and the next.
  static __device__ __forceinline__ int first_dim(int i, int lane) { return i * 8 + lane % 4 * 2; }
  static __device__ __forceinline__ float2 pair(const MmaResult<D>& acc, int i, int half) {
    return make_float2(acc[i][2 * half], acc[i][2 * half + 1]);
  }
};

/// For 8-bit elements, which are multiplied as f16: f16 holds them exactly. q is bf16 or f16. A
/// lane loads four consecutive dims, so the products take the dims in another order than memory has
/// them; q and K have the same order.
template <Dtype kKv, int D>
requires(bytes_of(kKv) == 1) struct MmaOperands<kKv, D> {
  using Tile = MmaTile<kKv, D>;
  static constexpr Dtype kWeights = Dtype::f16;

  /// Register i of lane l holds row l/4 + i%2*8, dims l%4*4 + i/2*2 and the next. A row of bf16 is
  /// first multiplied by the power of two that makes its largest magnitude 2^14 or more; then only
  /// elements 2^28 smaller than that lose bits in f16.
  static __device__ __forceinline__ void load_q(const void* const (&rows)[2], int lane,
                                                Dtype q_dtype, MmaQueries<D>& q,
                                                float (&factors)[2]) {
    const auto load = [&](int kk, int i) {
      const auto* pairs = static_cast<const std::uint32_t*>(rows[i % 2]);
      return pairs != nullptr ? pairs[kk * 8 + lane % 4 * 2 + i / 2] : 0;
    };
    factors[0] = factors[1] = 1.0f;
    float scales[2] = {1.0f, 1.0f};
    if (q_dtype == Dtype::bf16) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        std::uint32_t largest = 0;  // largest magnitude, as bits
#pragma unroll 1
        for (int kk = 0; kk < D / 16; ++kk)
#pragma unroll
          for (int i = half; i < 4; i += 2) {
            const std::uint32_t pair = load(kk, i) & 0x7fff7fffu;
            largest = pair >> 16 > largest ? pair >> 16 : largest;
            largest = (pair & 0xffffu) > largest ? pair & 0xffffu : largest;
          }
#pragma unroll
        for (int distance = 1; distance < 4; distance *= 2) {
          const std::uint32_t other = __shfl_xor_sync(kAllLanes, largest, distance);
          largest = other > largest ? other : largest;
        }
        constexpr std::uint32_t kBias = 127, kLeast = 30;
        const std::uint32_t exponent = largest >> 7 > kLeast ? largest >> 7 : kLeast;
        scales[half] = std::bit_cast<float>((kBias + 14 + kBias - exponent) << 23);
        factors[half] = std::bit_cast<float>((exponent - 14) << 23);
      }
    }
#pragma unroll
    for (int kk = 0; kk < D / 16; ++kk) {
      std::uint32_t fragment[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        fragment[i] = load(kk, i);
        if (q_dtype == Dtype::bf16)
          fragment[i] = pair_of<Dtype::f16>(
              value_of_bf16(static_cast<std::uint16_t>(fragment[i])) * scales[i % 2],
              value_of_bf16(static_cast<std::uint16_t>(fragment[i] >> 16)) * scales[i % 2]);
      }
      q.set(kk, fragment);
    }
  }

  /// Scores as in MmaOperands for 16-bit elements.
  static __device__ __forceinline__ void score(const MmaQueries<D>& q, const std::byte* keys,
                                               int lane, float (&scores)[2][4]) {
#pragma unroll
    for (int first = 0; first < Tile::kChunks; first += 2) {
      std::uint32_t k[4];  // of each chunk: tokens 0..7, tokens 8..15
      load_matrices(k, two_chunks(keys, first, lane));
#pragma unroll
      for (int kk = first; kk < first + 2 && kk < Tile::kChunks; ++kk) {
        std::uint32_t a[4];
        q.get(kk, a);
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          const std::uint32_t four = k[(kk - first) * 2 + n];
          multiply_add<kWeights>(scores[n], a, {low_pair(four), high_pair(four)});
        }
      }
    }
  }

  static __device__ __forceinline__ void add_values(const std::uint32_t (&weights)[4],
                                                    const std::byte* values, int lane,
                                                    MmaResult<D>& acc) {
#pragma unroll
    for (int first = 0; first < Tile::kChunks; first += 2) {
      std::uint32_t v[4];  // of each chunk: tokens low, high; two dims of one, then of the next
      load_matrices_transposed(v, two_chunks(values, first, lane));
#pragma unroll
      for (int chunk = first; chunk < first + 2 && chunk < Tile::kChunks; ++chunk) {
        const std::uint32_t low = swap_middle_bytes(v[(chunk - first) * 2]);
        const std::uint32_t high = swap_middle_bytes(v[(chunk - first) * 2 + 1]);
        multiply_add<kWeights>(acc[2 * chunk], weights, {low_pair(low), low_pair(high)});
        multiply_add<kWeights>(acc[2 * chunk + 1], weights, {high_pair(low), high_pair(high)});
      }
    }
  }

  static __device__ __forceinline__ int first_dim(int i, int lane) {
    return i / 2 * 16 + lane % 4 * 4 + i % 2 * 2;
  }
  static __device__ __forceinline__ float2 pair(const MmaResult<D>& acc, int i, int half) {
    return make_float2(acc[i / 2 * 2][2 * half + i % 2], acc[i / 2 * 2 + 1][2 * half + i % 2]);
  }

 private:
  /// The address that this lane passes to ldmatrix: a row of one of 16 tokens, in chunk `first` or
  /// in the next chunk (the same one if there is no next).
  static __device__ __forceinline__ const std::byte* two_chunks(const std::byte* plane, int first,
                                                                int lane) {
    const int chunk = first + 1 < Tile::kChunks ? first + lane / 16 : first;
    return plane + Tile::place(lane % 16, chunk);
  }
  static __device__ __forceinline__ std::uint32_t low_pair(std::uint32_t four) {
    return f16_pair_of<kKv>(static_cast<std::uint16_t>(four));
  }
  static __device__ __forceinline__ std::uint32_t high_pair(std::uint32_t four) {
    return f16_pair_of<kKv>(static_cast<std::uint16_t>(four >> 16));
  }
};

}  // namespace kvhive::device
