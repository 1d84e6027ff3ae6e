#pragma once
// Tokenizers small enough that a test's reader can work out ids by hand.

#include <nlohmann/json.hpp>

namespace kvhive {

/// Byte-level like Llama 3's. Byte b is id b; merges make 256 "he", 257 "ll", 258 "hell", 259
/// "hello", 260 " h"; 261 is <|bos|> (in front of every prompt), 262 <|end|>, both special; 263
/// "<tag>", not.
nlohmann::json small_byte_level();

/// SentencePiece-style like Llama 2's: 0 <unk>, 1 <s> (in front), 2 </s>, byte b is id 3+b,
/// 259 "▁", 260 "a", 261 "b", 262 "▁a", 263 "ab", 264 "▁ab".
nlohmann::json small_sentencepiece();

}  // namespace kvhive
