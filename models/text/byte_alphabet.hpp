#pragma once
// GPT-2's printable alphabet: byte-level vocabularies spell each of the 256 bytes as one visible
// character ("Ġ" is a space).
//
// Source: openai/gpt-2, src/encoder.py, bytes_to_unicode().

#include <optional>
#include <string>
#include <string_view>

namespace kvhive {

/// The bytes a vocabulary entry stands for; nothing if it has a character outside the alphabet, as
/// special tokens with a space have.
std::optional<std::string> bytes_of_spelling(std::string_view spelling);

}  // namespace kvhive
