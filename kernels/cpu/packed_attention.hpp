#pragma once
// Attention over PageLayout::packed, whose lines of 64 bytes are pairs of elements for 16 tokens
// (K) or 16 dims (V): just what bf16 dot products want (VDPBF16PS; an AMX tile is 16 such lines).
// Private to paged_attention_cpu; what is refused here, that kernel does itself.
//
// The order of work is the order of memory: a tile of few query tokens goes through all kv heads of
// a block before the next block. Borders are those of attention_plan.hpp, and a row sees the same
// operations in the same order whatever shares its registers: bits do not depend on the batch.

#include "kernels/paged_attention.hpp"

namespace kvhive {

/// Whether the CPU has what it takes, and the call asks for nothing but window, sinks and lse.
bool packed_attention_takes(const PagedAttentionArgs& args);

/// \param args  packed_attention_takes them
void packed_attention(const PagedAttentionArgs& args);

}  // namespace kvhive
