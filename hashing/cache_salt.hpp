#pragma once
// A cache salt: a text that a request may carry. Prompts with different salts share no blocks, and
// a prompt with a salt shares none with prompts that have none.
//
// Source: vLLM's cache_salt (v1/core/kv_cache_utils.py, generate_block_hash_extra_keys): an extra
// key of the first block. All later blocks follow from it, because each knows its parent.

#include <string_view>

#include "hashing/block_hash.hpp"

namespace kvhive {

/// The first block's extra key: the first 128 bits of SHA-256("kvhive cache salt", a zero byte, the
/// salt). A digest has one size whatever the salt's length, and does not show the salt. An empty
/// salt is no key.
ExtraKey salt_key(std::string_view salt);

/// The same for a prompt that is computed with an adapter: its blocks are shared only with prompts
/// of the same adapter, by name, and the same salt (vLLM: the name of the LoRA adapter is an extra
/// key). Without an adapter salt_key().
ExtraKey start_key(std::string_view salt, std::string_view adapter);

}  // namespace kvhive
