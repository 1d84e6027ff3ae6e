#pragma once
// Attention over PageLayout::packed. A line of 64 bytes there holds pairs of elements for 16 tokens
// (K) or for 16 dims (V), which is one operand of a bf16 dot product (VDPBF16PS; an AMX tile is 16
// such lines). Private to paged_attention_cpu, which computes itself what is refused here.
//
// Work is done in the order of memory: a tile of few query tokens goes through all kv heads of a
// block before it goes to the next block. Borders are those of attention_plan.hpp, and the
// operations on a row and their order do not depend on the rows that share its registers: bits do
// not depend on the batch.

#include "kernels/paged_attention.hpp"

namespace kvhive {

/// Whether the CPU can do it and the call has no option but window, chunk, sinks and lse.
bool packed_attention_takes(const PagedAttentionArgs& args);

/// \param args packed_attention_takes() must be true for them
void packed_attention(const PagedAttentionArgs& args);

}  // namespace kvhive
