#include "tests/models/text/small_tokenizers.hpp"

#include <cstdio>

#include "models/text/utf8.hpp"

namespace kvhive {
namespace {

using nlohmann::json;

/// GPT-2's spelling of a byte, from its definition.
std::string spelled(int byte) {
  const auto visible = [](int b) {
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || (b >= 174 && b <= 255);
  };
  if (visible(byte)) return utf8_of(byte);
  int hidden_before = 0;
  for (int b = 0; b < byte; ++b) hidden_before += !visible(b);
  return utf8_of(256 + hidden_before);
}

json added(int id, const char* content, bool special) {
  return {{"id", id},
          {"content", content},
          {"special", special},
          {"normalized", false},
          {"single_word", false},
          {"lstrip", false},
          {"rstrip", false}};
}

json bos_template(const char* bos, int id) {
  return {{"type", "TemplateProcessing"},
          {"single",
           {{{"SpecialToken", {{"id", bos}, {"type_id", 0}}}},
            {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
          {"special_tokens", {{bos, {{"id", bos}, {"ids", {id}}, {"tokens", {bos}}}}}}};
}

}  // namespace

json small_byte_level() {
  json vocab = json::object();
  for (int byte = 0; byte < 256; ++byte) vocab[spelled(byte)] = byte;
  int next = 256;
  for (const char* token : {"he", "ll", "hell", "hello", "Ġh"}) vocab[token] = next++;
  const json split{{"type", "Split"},
                   {"pattern", {{"Regex", R"( ?\p{L}+|\s+|[^\s\p{L}]+)"}}},
                   {"behavior", "Isolated"},
                   {"invert", false}};
  const json byte_level{{"type", "ByteLevel"},
                        {"add_prefix_space", false},
                        {"trim_offsets", true},
                        {"use_regex", false}};
  return {
      {"version", "1.0"},
      {"added_tokens",
       {added(261, "<|bos|>", true), added(262, "<|end|>", true), added(263, "<tag>", false)}},
      {"normalizer", nullptr},
      {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {split, byte_level}}}},
      {"post_processor",
       {{"type", "Sequence"}, {"processors", {byte_level, bos_template("<|bos|>", 261)}}}},
      {"decoder", byte_level},
      {"model",
       {{"type", "BPE"}, {"vocab", vocab}, {"merges", {"h e", "l l", "he ll", "hell o", "Ġ h"}}}}};
}

json small_sentencepiece() {
  json vocab{{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}};
  for (int byte = 0; byte < 256; ++byte) {
    char spelling[8];
    std::snprintf(spelling, sizeof spelling, "<0x%02X>", byte);
    vocab[spelling] = 3 + byte;
  }
  int next = 259;
  for (const char* token : {"▁", "a", "b", "▁a", "ab", "▁ab"}) vocab[token] = next++;
  const json mark{{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "▁"}};
  const json unmark{{"type", "Replace"}, {"pattern", {{"String", "▁"}}}, {"content", " "}};
  return {
      {"version", "1.0"},
      {"added_tokens", {added(0, "<unk>", true), added(1, "<s>", true), added(2, "</s>", true)}},
      {"normalizer",
       {{"type", "Sequence"}, {"normalizers", {{{"type", "Prepend"}, {"prepend", "▁"}}, mark}}}},
      {"pre_tokenizer", nullptr},
      {"post_processor", bos_template("<s>", 1)},
      {"decoder",
       {{"type", "Sequence"},
        {"decoders",
         {unmark,
          {{"type", "ByteFallback"}},
          {{"type", "Fuse"}},
          {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}}},
      {"model",
       {{"type", "BPE"},
        {"vocab", vocab},
        {"unk_token", "<unk>"},
        {"fuse_unk", true},
        {"byte_fallback", true},
        {"merges", {"a b", "▁ a", "▁ ab"}}}}};
}

}  // namespace kvhive
