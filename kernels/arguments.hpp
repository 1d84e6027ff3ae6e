#pragma once
// Checks that every backend makes on its arguments before it computes. Each function ends the
// process and prints the values if no cache or model can have them: the arguments are made by this
// project's code, never by a user.

#include "kernels/cache_write.hpp"
#include "kernels/merge_states.hpp"
#include "kernels/paged_attention.hpp"
#include "kernels/paged_mla.hpp"
#include "kernels/row_kernels.hpp"
#include "kernels/sampling.hpp"

namespace kvhive {

void check_arguments(const PagedAttentionArgs& args);
void check_arguments(const CacheWriteArgs& args);
void check_arguments(const MergeStatesArgs& args);
void check_arguments(const PagedMlaArgs& args);
void check_arguments(const MlaWriteArgs& args);
void check_arguments(const EmbedArgs& args);
void check_arguments(const AddRmsNormArgs& args);
void check_arguments(const RotateArgs& args);
void check_arguments(const RotatePairsArgs& args);
void check_arguments(const GateMultiplyArgs& args);
void check_arguments(const TuneQueriesArgs& args);
void check_arguments(const SoftCapArgs& args);
/// args.choices must be in host memory.
void check_arguments(const SampleArgs& args);

}  // namespace kvhive
