// Compares a Llama of 1B shape with random bf16 weights with the machine's limits. The two are
// measured alternately (A, B, A, B); the figure is the median of the pairs' ratios.
//
//   products   weights as they are mapped, by Matmul, against reading them once with as many
//              threads, and against oneDNN (f32 weights where oneDNN has no bf16), in one call or
//              in slabs, whichever is faster
//   decode     one token, or one of 4 or 16 sequences each, against reading the model's file once
//   prefill    2,048 tokens, against oneDNN's time for the same products alone
//
// Usage: bench_model [--brief] [--only TEXT]
//   (brief: a model of a few MiB, to see that it runs; TEXT: part of the cases' names)

#include <omp.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <string>
#include <unistd.h>

#include "base/check.hpp"
#include "kernels/cpu/instructions/cpu_features.hpp"
#include "base/memory/line_allocator.hpp"
#include "base/memory/mapped_file.hpp"
#include "models/product/matmul.hpp"
#include "models/transformer.hpp"
#include "tools/bench/onednn_product.hpp"
#include "tools/bench/table.hpp"

namespace kvhive::bench {
namespace {

struct Sizes {
  std::int32_t layers = 16, hidden = 2048, intermediate = 8192, heads = 32, kv_heads = 8;
  std::int32_t head_size = 64, vocab = 128256, prompt = 2048, depth = 4096, pairs = 7;
};

/// Random weights like those of a model, rounded to bf16: both signs, magnitudes around 0.02.
std::vector<std::uint16_t> random_weights(std::size_t count) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 0.02f);
  std::vector<std::uint16_t> values(std::min<std::size_t>(count, 1 << 20));
  for (auto& value : values) value = bf16_of_float(normal(random));
  const std::size_t period = values.size();
  values.resize(count);
  for (std::size_t at = period; at < count; at += period)
    std::copy_n(values.begin(), std::min(period, count - at), values.begin() + at);
  return values;
}

/// A directory with config.json and one safetensors file. The destructor removes it.
class ModelDirectory {
 public:
  explicit ModelDirectory(const Sizes& sizes)
      : path_(std::filesystem::temp_directory_path() /
              ("kvhive-bench-model-" + std::to_string(::getpid()))) {
    std::filesystem::create_directory(path_);
    const nlohmann::json config{{"model_type", "llama"},
                                {"architectures", {"LlamaForCausalLM"}},
                                {"vocab_size", sizes.vocab},
                                {"hidden_size", sizes.hidden},
                                {"intermediate_size", sizes.intermediate},
                                {"num_hidden_layers", sizes.layers},
                                {"num_attention_heads", sizes.heads},
                                {"num_key_value_heads", sizes.kv_heads},
                                {"head_dim", sizes.head_size},
                                {"hidden_act", "silu"},
                                {"max_position_embeddings", 131072},
                                {"rms_norm_eps", 1e-5},
                                {"rope_theta", 500000.0},
                                {"tie_word_embeddings", true},
                                {"bos_token_id", 0},
                                {"eos_token_id", 1},
                                {"torch_dtype", "bfloat16"}};
    std::ofstream(path_ / "config.json") << config;
    write_weights(sizes);
  }
  ~ModelDirectory() { std::filesystem::remove_all(path_); }
  ModelDirectory(const ModelDirectory&) = delete;
  ModelDirectory& operator=(const ModelDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path weights() const { return path_ / "model.safetensors"; }

 private:
  void add(const std::string& name, const std::vector<std::int32_t>& shape) {
    std::size_t bytes = 2;
    for (const std::int32_t n : shape) bytes *= n;
    header_[name] = {
        {"dtype", "BF16"}, {"shape", shape}, {"data_offsets", {data_bytes_, data_bytes_ + bytes}}};
    data_bytes_ += bytes;
  }

  void write_weights(const Sizes& s) {
    add("model.embed_tokens.weight", {s.vocab, s.hidden});
    add("model.norm.weight", {s.hidden});
    for (std::int32_t layer = 0; layer < s.layers; ++layer) {
      const std::string of = "model.layers." + std::to_string(layer) + ".";
      add(of + "input_layernorm.weight", {s.hidden});
      add(of + "post_attention_layernorm.weight", {s.hidden});
      add(of + "self_attn.q_proj.weight", {s.heads * s.head_size, s.hidden});
      add(of + "self_attn.k_proj.weight", {s.kv_heads * s.head_size, s.hidden});
      add(of + "self_attn.v_proj.weight", {s.kv_heads * s.head_size, s.hidden});
      add(of + "self_attn.o_proj.weight", {s.hidden, s.heads * s.head_size});
      add(of + "mlp.gate_proj.weight", {s.intermediate, s.hidden});
      add(of + "mlp.up_proj.weight", {s.intermediate, s.hidden});
      add(of + "mlp.down_proj.weight", {s.hidden, s.intermediate});
    }
    std::string header = header_.dump();
    header.resize((header.size() + 63) / 64 * 64 - 8 + 64, ' ');
    const std::uint64_t header_bytes = header.size();
    std::ofstream file(weights(), std::ios::binary);
    file.write(reinterpret_cast<const char*>(&header_bytes), sizeof header_bytes);
    file << header;
    const auto values = random_weights(1 << 20);
    for (std::size_t left = data_bytes_; left > 0;) {
      const std::size_t bytes = std::min(left, values.size() * 2);
      file.write(reinterpret_cast<const char*>(values.data()), static_cast<std::streamsize>(bytes));
      left -= bytes;
    }
    KV_CHECK(file.good());
  }

  std::filesystem::path path_;
  nlohmann::json header_;
  std::size_t data_bytes_ = 0;
};

/// What oneDNN is given to multiply.
Dtype onednn_dtype() { return cpu_features().avx512 ? Dtype::bf16 : Dtype::f32; }

LineVector<std::byte> bytes_of_weights(std::size_t count, Dtype dtype) {
  const auto narrow = random_weights(count);
  const auto* from = reinterpret_cast<const std::byte*>(narrow.data());
  if (dtype == Dtype::bf16) return {from, from + count * 2};
  LineVector<std::byte> wide(count * sizeof(float));
  std::transform(narrow.begin(), narrow.end(), reinterpret_cast<float*>(wide.data()),
                 float_of_bf16);
  return wide;
}

/// Several matrices of weights of one shape, more than the caches hold, used one after the other.
class Products {
 public:
  Products(std::int32_t N, std::int32_t K, std::size_t bytes)
      : N_(N),
        K_(K),
        count_(std::max<std::size_t>(1, bytes / (std::size_t(N) * K * 2))),
        values_(bytes_of_weights(count_ * N * K + kOffset, Dtype::bf16)) {
    for (std::size_t i = 0; i < count_; ++i)
      all_.emplace_back(MatmulWeights{Dtype::bf16, N, K,
                                      std::span(values_).subspan(kOffset + i * each(), each())},
                        std::vector<float>{});
  }

  void run(std::int32_t rows) {
    x_.resize(std::size_t(rows) * K_, 0.5f);
    y_.resize(std::size_t(rows) * N_);
    for (const Matmul& matmul : all_) matmul.apply(x_, y_);
  }

  /// Reads the weights, by as many threads.
  void read() { read_all(values_); }

 private:
  /// Tensors in a file begin at any 8 bytes.
  static constexpr std::size_t kOffset = 8;

  std::size_t each() const { return std::size_t(N_) * K_ * 2; }

  std::int32_t N_, K_;
  std::size_t count_;
  LineVector<std::byte> values_;
  std::vector<Matmul> all_;
  LineVector<float> x_, y_;
};

/// The same by oneDNN, in whichever way is faster.
class OneDnnProducts {
 public:
  using Way = void (OneDnnProduct::*)(const std::byte*, const std::byte*, float*);

  OneDnnProducts(std::int32_t rows, std::int32_t N, std::int32_t K, std::size_t count)
      : count_(count),
        each_(std::size_t(N) * K * bytes_of(onednn_dtype())),
        values_(bytes_of_weights(count * N * K, onednn_dtype())),
        x_(bytes_of_weights(std::size_t(rows) * K, onednn_dtype())),
        y_(std::size_t(rows) * N),
        product_(rows, N, K, onednn_dtype()) {
    for (const Way way : {&OneDnnProduct::run, &OneDnnProduct::run_in_slabs}) {
      run_all(way);
      const double seconds = seconds_of([&] { run_all(way); });
      if (seconds < best_) {
        best_ = seconds;
        way_ = way;
      }
    }
  }

  void run() { run_all(way_); }

 private:
  void run_all(Way way) {
    for (std::size_t i = 0; i < count_; ++i)
      (product_.*way)(x_.data(), values_.data() + i * each_, y_.data());
  }

  std::size_t count_, each_;
  LineVector<std::byte> values_, x_;
  LineVector<float> y_;
  OneDnnProduct product_;
  Way way_ = nullptr;
  double best_ = 1e9;
};

/// Runs steps of sequences that share no blocks.
class Steps {
 public:
  static constexpr std::int32_t kMostSequences = 16;  ///< of at most 32 tokens each
  Steps(Transformer& model, const Sizes& sizes)
      : model_(model),
        layout_(fastest_kv_layout(model.config(), one_group(model.config()), 16, Dtype::bf16)),
        blocks_(std::max(std::max(sizes.prompt, sizes.depth) / 16 + 1, kMostSequences * 2)),
        arena_(layout_.block_bytes() * blocks_),
        logits_(model.config().vocab_size) {
    auto* values = reinterpret_cast<std::uint16_t*>(arena_.data());
    const auto some = random_weights(arena_.size() / 2);
    std::copy(some.begin(), some.end(), values);
    for (std::uint32_t i = 0; i < blocks_; ++i) table_.push_back(BlockId{i});
    std::shuffle(table_.begin(), table_.end(), std::mt19937(1));
  }

  /// Computes the last `tokens` tokens of a sequence of `length` tokens.
  void run(std::int32_t length, std::int32_t tokens) {
    std::vector<TokenId> ids(tokens);
    std::vector<std::int32_t> positions(tokens);
    std::vector<std::int64_t> slots(tokens);
    for (std::int32_t i = 0; i < tokens; ++i) {
      const std::int32_t position = length - tokens + i;
      ids[i] = i * 7 % model_.config().vocab_size;
      positions[i] = position;
      slots[i] = std::int64_t{table_[position / 16].value} * 16 + position % 16;
    }
    const std::array query_start{0, tokens};
    const std::array kv_len{length};
    const std::array logit_rows{tokens - 1};
    model_.forward({ids, positions, query_start, kv_len, table_, slots, logit_rows,
                    static_cast<std::int32_t>(table_.size())},
                   arena_.data(), layout_, std::span(logits_).first(vocab()));
  }

  /// Computes the last token of each of `count` sequences of `length` tokens.
  void run_batch(std::int32_t length, std::int32_t count) {
    const std::int32_t blocks = (length + 15) / 16;
    std::vector<TokenId> ids;
    std::vector<std::int32_t> positions, query_start{0}, kv_len, logit_rows;
    std::vector<std::int64_t> slots;
    for (std::int32_t i = 0; i < count; ++i) {
      ids.push_back(i);
      positions.push_back(length - 1);
      kv_len.push_back(length);
      logit_rows.push_back(i);
      query_start.push_back(i + 1);
      slots.push_back(std::int64_t{table_[std::size_t(i * blocks + blocks - 1)].value} * 16 +
                      (length - 1) % 16);
    }
    logits_.resize(std::size_t(count) * vocab());
    model_.forward(
        {ids, positions, query_start, kv_len, std::span(table_).first(std::size_t(count) * blocks),
         slots, logit_rows, blocks},
        arena_.data(), layout_, std::span(logits_).first(std::size_t(count) * vocab()));
  }

 private:
  std::size_t vocab() const { return std::size_t(model_.config().vocab_size); }

  Transformer& model_;
  KvLayout layout_;
  std::size_t blocks_;
  LineVector<std::byte> arena_;
  std::vector<BlockId> table_;
  std::vector<float> logits_;
};

/// Computes all products of a step over `rows` rows with oneDNN, one after the other.
class OneDnnStep {
 public:
  OneDnnStep(const Sizes& s, std::int32_t rows) : layers_(s.layers) {
    const std::int32_t q = s.heads * s.head_size, kv = s.kv_heads * s.head_size;
    for (const auto& [N, K] : {std::pair{q, s.hidden},
                               {kv, s.hidden},
                               {kv, s.hidden},
                               {s.hidden, q},
                               {s.intermediate, s.hidden},
                               {s.intermediate, s.hidden},
                               {s.hidden, s.intermediate}})
      products_.push_back(std::make_unique<OneDnnProducts>(rows, N, K, 1));
  }

  void run() {
    for (std::int32_t layer = 0; layer < layers_; ++layer)
      for (const auto& product : products_) product->run();
  }

 private:
  std::int32_t layers_;
  std::vector<std::unique_ptr<OneDnnProducts>> products_;
};

void measure(const Table& table, const Sizes& sizes, Transformer& model,
             std::span<const std::byte> file) {
  {
    constexpr std::size_t kCount = 8;
    Products products(sizes.intermediate, sizes.hidden,
                      kCount * sizes.intermediate * sizes.hidden * 2);
    for (const std::int32_t rows : {1, 2, 4, 8, 16, 64, 256, 2048}) {
      const std::string name = "8 products, rows " + std::to_string(rows);
      if (rows <= 64)
        table.add(
            name + " / read", sizes.pairs, [&] { products.run(rows); }, [&] { products.read(); });
      if (!table.has(name + " / oneDNN")) continue;
      OneDnnProducts onednn(rows, sizes.intermediate, sizes.hidden, kCount);
      table.add(
          name + " / oneDNN", sizes.pairs, [&] { products.run(rows); }, [&] { onednn.run(); });
    }
  }
  for (const auto& [N, K] : {std::pair{sizes.hidden, sizes.hidden},
                             {sizes.kv_heads * sizes.head_size, sizes.hidden},
                             {sizes.hidden, sizes.intermediate}}) {
    const std::string name = "product of " + std::to_string(N) + " x " + std::to_string(K) +
                             ", rows " + std::to_string(sizes.prompt) + " / oneDNN";
    if (!table.has(name)) continue;
    Products products(N, K, std::size_t(N) * K * 2);
    OneDnnProducts onednn(sizes.prompt, N, K, 1);
    table.add(
        name, sizes.pairs, [&] { products.run(sizes.prompt); }, [&] { onednn.run(); });
  }
  Steps steps(model, sizes);
  for (const std::int32_t length : {17, sizes.depth})
    table.add(
        "decode at " + std::to_string(length) + " / read of the weights", sizes.pairs,
        [&] { steps.run(length, 1); }, [&] { read_all(file); });
  for (const std::int32_t rows : {4, Steps::kMostSequences})
    table.add(
        "decode of " + std::to_string(rows) + " / read of the weights", sizes.pairs,
        [&] { steps.run_batch(17, rows); }, [&] { read_all(file); });
  if (const std::string name = "prefill " + std::to_string(sizes.prompt) + " / oneDNN's products";
      table.has(name)) {
    OneDnnStep onednn(sizes, sizes.prompt);
    table.add(
        name, (sizes.pairs + 1) / 2, [&] { steps.run(sizes.prompt, sizes.prompt); },
        [&] { onednn.run(); });
  }
}

}  // namespace
}  // namespace kvhive::bench

int main(int argc, char** argv) {
  using namespace kvhive;
  bench::Sizes sizes;
  bench::Table table;
  for (int i = 1; i < argc; ++i) {
    if (std::string(argv[i]) == "--brief") sizes = {2, 128, 256, 4, 2, 32, 512, 64, 64, 2};
    if (std::string(argv[i]) == "--only" && i + 1 < argc) table.only = argv[++i];
  }
  const bench::ModelDirectory directory(sizes);
  auto model = Transformer::load(directory.path());
  if (!model) {
    std::fprintf(stderr, "%s\n", model.error().text.c_str());
    return 1;
  }
  const MappedFile file = MappedFile::open(directory.weights()).value();
  std::printf("A 1B-shaped Llama, bf16; ms; the ratio is yardstick over work\n");
  std::printf("%-44s %7s %10s %10s %7s\n", "work / yardstick", "threads", "work", "yardstick",
              "ratio");
  const int all = omp_get_max_threads();
  for (const int threads : {1, all}) {
    omp_set_num_threads(threads);
    bench::measure(table, sizes, *model, file.bytes());
    if (all == 1) break;
  }
}
