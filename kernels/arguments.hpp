#pragma once
// What every backend refuses: arguments that no cache and no model can mean. Each function ends the
// process with the values named (they are made by our code, never by a user).

#include "kernels/cache_write.hpp"
#include "kernels/merge_states.hpp"
#include "kernels/paged_attention.hpp"
#include "kernels/paged_mla.hpp"

namespace kvhive {

void check_arguments(const PagedAttentionArgs& args);
void check_arguments(const CacheWriteArgs& args);
void check_arguments(const MergeStatesArgs& args);
void check_arguments(const PagedMlaArgs& args);
void check_arguments(const MlaWriteArgs& args);

}  // namespace kvhive
