#pragma once
// What every backend refuses: arguments that no cache and no model can mean. Each function ends the
// process with the values named (they are made by our code, never by a user).

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
void check_arguments(const SiluMultiplyArgs& args);
/// `choices` in host memory.
void check_arguments(const SampleArgs& args);

}  // namespace kvhive
