// A tokenizer.json and a text. The input is the JSON, a zero byte and the text.

#include <nlohmann/json.hpp>

#include "base/check.hpp"
#include "base/json_file.hpp"
#include "models/text/detokenizer.hpp"
#include "models/text/tokenizer_parser.hpp"
#include "tests/fuzz/fuzz_input.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvhive;
  const std::string input = testing::FuzzInput(data, size).rest();
  const std::size_t end = std::min(input.find('\0'), input.size());
  const auto json = parse_json_object(std::string_view(input).substr(0, end));
  if (!json) return 0;
  const auto tokenizer = parse_tokenizer(*json, "fuzzed");
  if (!tokenizer) return 0;
  const std::string text = end < input.size() ? input.substr(end + 1) : "a text, 12 words";
  const auto tokens = tokenizer->encode(text, AddSpecial::yes);
  if (!tokens) return 0;
  for (const TokenId token : *tokens) {
    KV_CHECK(token >= 0 && token < tokenizer->vocab_size(), token);
    (void)tokenizer->token_bytes(token);
  }
  (void)decode(*tokenizer, *tokens);
  return 0;
}
