// Writes a model's logits, for a comparison with others' (model_families.py).
//
// model_logits DIRECTORY GREEDY KV_DTYPE   reads token ids from standard input and writes to
// standard output the logits of each of them, [tokens, vocab] float32, then the GREEDY tokens that
// continue them, int32. The cache is of blocks of 16 tokens of KV_DTYPE, as --kv-cache-dtype names
// them.

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <span>
#include <string>
#include <vector>

#include "config/dtype.hpp"
#include "models/sampling/sampler.hpp"
#include "models/transformer.hpp"
#include "tests/models/paged_runner.hpp"

namespace kvhive {
namespace {

template <class T>
void write(const std::vector<T>& values) {
  std::cout.write(reinterpret_cast<const char*>(values.data()),
                  static_cast<std::streamsize>(values.size() * sizeof(T)));
}

int run(const std::string& directory, std::size_t greedy, std::string_view kv) {
  const auto names = names_of(KvCacheDtype{});
  const auto asked = static_cast<KvCacheDtype>(std::ranges::find(names, kv) - names.begin());
  auto model = Transformer::load(directory);
  if (!model) {
    std::cerr << model.error().text << '\n';
    return 1;
  }
  std::vector<TokenId> tokens, answer;
  for (TokenId token = 0; std::cin >> token;) tokens.push_back(token);
  constexpr std::uint32_t kBlock = 16;
  const auto blocks = static_cast<std::uint32_t>((tokens.size() + greedy) / kBlock + 1);
  PagedRunner runner(*model, kv_dtype(asked, model->config().dtype), kBlock, blocks, /*seed=*/1);
  auto logits = runner.step({{0, tokens}}).front();
  write(logits);
  while (answer.size() < greedy) {
    const auto last = std::span<const float>(logits).last(model->config().vocab_size);
    answer.push_back(sample(last, {}, 0).token);
    logits = runner.step({{0, {answer.back()}}}).front();
  }
  write(answer);
  return 0;
}

}  // namespace
}  // namespace kvhive

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fputs("usage: model_logits DIRECTORY GREEDY KV_DTYPE < tokens > logits\n", stderr);
    return 2;
  }
  return kvhive::run(argv[1], std::strtoul(argv[2], nullptr, 10), argv[3]);
}
