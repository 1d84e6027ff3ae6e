// Models on a fake GPU: compared with float64, with the CPU's transformer, and with themselves.
// However a sequence is cut and batched, its bits are the same, because the fake device's products
// are batch-invariant.

#include "models/gpu/gpu_transformer.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <map>
#include <random>
#include <set>
#include <tuple>

#include "base/json_file.hpp"
#include "kernels/element.hpp"
#include "models/gpu/gpu_weights.hpp"
#include "models/sampling/sampler.hpp"
#include "tests/models/golden.hpp"
#include "tests/models/gpu/gpu_model.hpp"
#include "tests/models/sampling/sampling_params.hpp"
#include "tests/support/embeddings.hpp"
#include "tests/support/temp_directory.hpp"
#include "models/config/load_model_config.hpp"

namespace kvhive {
namespace {

const std::filesystem::path kDemo = KVHIVE_DEMO_DIR;
constexpr std::uint32_t kBlockSize = 4, kBlocks = 64;
constexpr GpuLimits kSmall{.tokens = 128, .sequences = 4, .logit_rows = 128, .likeliest = 5};

struct Case {
  const char* model;
  double tolerance;
  double coarse_kv = 1;  ///< how many times as much a coarse KV cache may change
};

/// gtest names a case by its model.
void PrintTo(const Case& c, std::ostream* out) { *out << c.model; }

/// A prompt in one step, logits of the last token wanted.
struct Prompt {
  std::vector<TokenId> tokens;
  std::vector<std::int32_t> positions, query_start, kv_len, rows;
  std::vector<std::int64_t> slots;
  std::vector<BlockId> table;

  explicit Prompt(std::vector<TokenId> of) : tokens(std::move(of)) {
    const auto count = static_cast<std::int32_t>(tokens.size());
    for (std::int32_t t = 0; t < count; ++t) positions.push_back(t), slots.push_back(t);
    query_start = {0, count};
    kv_len = {count};
    rows = {count - 1, 0, count - 1};
    for (std::uint32_t b = 0; b * kBlockSize < tokens.size(); ++b) table.push_back(BlockId{b});
  }
  ForwardBatch batch() const {
    return {tokens, positions, query_start, kv_len,
            table,  slots,     rows,        static_cast<std::int32_t>(table.size())};
  }
};

class GpuGoldenModel : public ::testing::TestWithParam<Case> {
 protected:
  Golden golden_ = read_golden(GetParam().model);
  ModelConfig config_ = load_model_config(kGolden / GetParam().model).value();

  /// The types of KV that the model may have, the finest one first.
  std::vector<Dtype> kv_dtypes() const {
    if (config_.is_latent()) return {Dtype::bf16, Dtype::e4m3};
    return {Dtype::f32, Dtype::f16, Dtype::bf16, Dtype::int8, Dtype::e4m3};
  }
  GpuModel model(Dtype kv_dtype, GpuLimits limits = kSmall) const {
    return GpuModel(kGolden / GetParam().model, limits, kv_dtype, kBlockSize, kBlocks);
  }
  GpuModel model() const { return model(kv_dtypes().front()); }
};

TEST_P(GpuGoldenModel, MatchesFloat64) {
  GpuModel gpu = model();
  const auto logits = gpu.runner(1).run_chunked(0, golden_.tokens, {golden_.tokens.size()});
  ASSERT_EQ(logits.size(), golden_.logits.size());
  EXPECT_LT(relative_error(logits, golden_.logits), GetParam().tolerance);
}

TEST_P(GpuGoldenModel, StaysNearFloat64WithAnyKvDtype) {
  std::map<Dtype, double> extra = {{Dtype::f32, 0},
                                   {Dtype::f16, 2e-3},
                                   {Dtype::bf16, 1e-2},
                                   {Dtype::int8, 2e-2},
                                   {Dtype::e4m3, 0.1}};
  for (const Dtype dtype : kv_dtypes()) {
    GpuModel gpu = model(dtype);
    const auto logits = gpu.runner(1).run_chunked(0, golden_.tokens, {golden_.tokens.size()});
    EXPECT_LT(relative_error(logits, golden_.logits),
              GetParam().tolerance + GetParam().coarse_kv * extra[dtype])
        << to_string(dtype);
  }
}

/// Some hundred steps of an emulated GPU: by default of the finest and the coarsest KV.
/// KVHIVE_EVERY_CASE=1 (`make matrices`): of all.
TEST_P(GpuGoldenModel, PrefillChunksAndDecodeGiveTheSameBits) {
  const auto& tokens = golden_.tokens;
  std::vector<Dtype> kinds = kv_dtypes();
  if (std::getenv("KVHIVE_EVERY_CASE") == nullptr) kinds = {kinds.front(), kinds.back()};
  for (const Dtype kv_dtype : kinds) {
    GpuModel gpu = model(kv_dtype);
    const auto prefill = gpu.runner(1).run_chunked(0, tokens, {tokens.size()});
    EXPECT_EQ(gpu.runner(2).run_chunked(0, tokens, {1}), prefill);
    EXPECT_EQ(gpu.runner(3).run_chunked(0, tokens, {20, 9, 1}), prefill);
  }
}

TEST_P(GpuGoldenModel, CacheGroupsDoNotChangeBits) {
  const auto& tokens = golden_.tokens;
  GpuModel whole = model();
  const auto expected = whole.runner(1).run_chunked(0, tokens, {tokens.size()});
  const std::uint32_t groups = group_layers(config_).groups.count;
  GpuModel grouped(kGolden / GetParam().model, kSmall, kv_dtypes().front(), kBlockSize,
                   groups * kBlocks, true);
  for (const std::vector<std::size_t>& chunks :
       {std::vector<std::size_t>{tokens.size()}, {1}, {20, 9, 1}})
    EXPECT_EQ(grouped.runner(3).run_chunked(0, tokens, chunks), expected);
}

/// The second layer sees 11 tokens: its blocks go round while the first layer's stay.
TEST(GpuTransformer, FullAndSlidingLayersHaveTablesOfTheirOwn) {
  const TempDirectory hybrid(kGolden / "qwen2");
  auto config = read_json_object(hybrid.path() / "config.json").value();
  config["use_sliding_window"] = true;
  config["sliding_window"] = 11;
  config["max_window_layers"] = 1;
  hybrid.write("config.json", config.dump());
  const auto tokens = read_golden("qwen2").tokens;
  for (const Dtype kv_dtype : {Dtype::f32, Dtype::bf16}) {
    GpuModel whole(hybrid.path(), kSmall, kv_dtype, kBlockSize, kBlocks);
    const auto expected = whole.runner(1).run_chunked(0, tokens, {tokens.size()});
    GpuModel grouped(hybrid.path(), kSmall, kv_dtype, kBlockSize, 2 * kBlocks, true);
    for (const std::vector<std::size_t>& chunks :
         {std::vector<std::size_t>{tokens.size()}, {1}, {20, 9, 1}}) {
      PagedRunner runner = grouped.runner(3);
      runner.run_chunked(1, tokens, {5});  // a neighbour
      EXPECT_EQ(runner.run_chunked(0, tokens, chunks), expected) << to_string(kv_dtype);
    }
  }
}

TEST_P(GpuGoldenModel, BatchNeighboursDoNotChangeBits) {
  const auto& tokens = golden_.tokens;
  GpuModel gpu = model();
  const auto alone = gpu.runner(1).run_chunked(0, tokens, {tokens.size()});
  auto batched = gpu.runner(5);
  const std::vector<TokenId> reversed(tokens.rbegin(), tokens.rend());
  const std::vector<TokenId> head(tokens.begin(), tokens.begin() + 17);
  batched.step({{7, reversed}});
  auto first = batched.step({{7, {3}}, {0, head}, {8, reversed}});
  auto second = batched.step({{8, {5}}, {9, head}, {0, {tokens.begin() + 17, tokens.end()}}});
  std::vector<float> logits = first[1];
  logits.insert(logits.end(), second[2].begin(), second[2].end());
  EXPECT_EQ(logits, alone);
}

/// Uses products in which rows do not depend on each other, also on a device whose own products do
/// depend.
TEST_P(GpuGoldenModel, BatchInvariantProductsAreRightAndUsed) {
  GpuLimits limits = kSmall;
  limits.is_batch_invariant = true;
  GpuModel gpu = model(Dtype::bf16, limits);
  std::size_t multiplied = 0;
  gpu.device().set_faults({.before_call = [&](std::uint64_t, const char* name) {
    multiplied += std::string_view(name) == "multiply";
  }});
  const auto& tokens = golden_.tokens;
  const auto prefill = gpu.runner(1).run_chunked(0, tokens, {tokens.size()});
  EXPECT_LT(relative_error(prefill, golden_.logits), GetParam().tolerance + 1e-2);
  EXPECT_EQ(gpu.runner(2).run_chunked(0, tokens, {1}), prefill);
  EXPECT_EQ(gpu.runner(3).run_chunked(0, tokens, {20, 9, 1}), prefill);
  EXPECT_EQ(multiplied, 0u);
}

TEST_P(GpuGoldenModel, AttentionInManyCallsGivesTheSameBits) {
  const auto& tokens = golden_.tokens;
  GpuModel gpu = model();
  const auto all = gpu.runner(1).run_chunked(0, tokens, {tokens.size()});
  GpuLimits cramped = kSmall;
  cramped.state_bytes = 0;
  GpuModel small = model(kv_dtypes().front(), cramped);
  EXPECT_EQ(small.runner(1).run_chunked(0, tokens, {tokens.size()}), all);
}

/// What prompt_logprobs asks for: rows of the last step, more than fit into one piece.
TEST_P(GpuGoldenModel, FurtherLogitsAreThoseOfTheRows) {
  GpuLimits limits = kSmall;
  limits.logit_rows = 32;
  GpuModel gpu = model(kv_dtypes().front(), limits);
  (void)gpu.runner(1);
  const std::vector<TokenId> tokens(golden_.tokens.begin(), golden_.tokens.begin() + 20);
  const Prompt prompt(tokens);
  const auto layout =
      kv_layout(gpu.config(), one_group(gpu.config()), kBlockSize, kv_dtypes().front());
  const auto sampled = gpu.forward(prompt.batch(), layout).value();
  const std::size_t vocab = gpu.config().vocab_size;
  std::vector<std::int32_t> rows(40);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<std::int32_t>(i * 7 % 20);
  std::vector<float> further(rows.size() * vocab);
  ASSERT_TRUE(gpu.transformer().further_logits(rows, further));
  std::vector<float> all(tokens.size() * vocab);
  for (std::size_t i = 0; i < rows.size(); ++i)
    std::copy_n(&further[i * vocab], vocab, &all[std::size_t(rows[i]) * vocab]);
  const std::vector<double> want(golden_.logits.begin(),
                                 golden_.logits.begin() + std::ptrdiff_t(all.size()));
  EXPECT_LT(relative_error(all, want), GetParam().tolerance);
  if (gpu.is_batch_invariant()) {
    for (std::size_t i = 0; i < prompt.rows.size(); ++i)
      EXPECT_TRUE(std::equal(&sampled[i * vocab], &sampled[(i + 1) * vocab],
                             &all[std::size_t(prompt.rows[i]) * vocab]));
  }
}

/// Runs of rows, and one alone; what stands in their tokens' places does not count.
TEST_P(GpuGoldenModel, EmbeddingsThatAreGivenAreThoseOfTheTokens) {
  GpuModel gpu = model();
  (void)gpu.runner(1);
  const auto layout =
      kv_layout(gpu.config(), one_group(gpu.config()), kBlockSize, kv_dtypes().front());
  Prompt prompt(golden_.tokens);
  const auto expected = gpu.forward(prompt.batch(), layout).value();
  const auto rows = testing::embeddings_of(kGolden / GetParam().model, prompt.tokens);
  const std::size_t width = gpu.config().hidden_size;
  std::vector<EmbeddedRow> embedded;
  for (const std::size_t row : {0, 1, 2, 7, 9, 10}) {
    prompt.tokens[row] = 0;
    embedded.push_back({row, std::span(rows).subspan(row * width, width)});
  }
  ForwardBatch batch = prompt.batch();
  EXPECT_NE(gpu.forward(batch, layout).value(), expected);
  batch.embedded = embedded;
  EXPECT_EQ(gpu.forward(batch, layout).value(), expected);
}

// Tolerances: with f32 everywhere, those of the CPU. With narrower weights, values between products
// are rounded, too: twelve times per layer, by 0.11 % rms (bf16) or an eighth of that (f16). A
// router's choice that a rounding turns gives a token another expert.
INSTANTIATE_TEST_SUITE_P(
    Models, GpuGoldenModel,
    ::testing::Values(
        Case{"llama2", 1e-5}, Case{"llama3", 2e-2}, Case{"mistral", 3e-3}, Case{"qwen2", 1e-5},
        Case{"qwen3", 2e-2}, Case{"gemma2", 1e-5}, Case{"gemma3", 2e-2}, Case{"qwen3_moe", 2e-2, 2},
        Case{"qwen3_moe_raw", 1e-5, 2}, Case{"yarn", 1e-5}, Case{"yarn_mscale", 1e-5},
        Case{"fp8_block", 2e-2, 2}, Case{"fp8_tensor", 1e-5}, Case{"fp8_channel", 3e-3},
        Case{"deepseek_v2", 3e-2, 2}, Case{"deepseek_v2_lite", 1e-2, 2}, Case{"llama4", 1e-5, 2},
        Case{"llama4_top2", 4e-2, 2}, Case{"gptq", 3e-3}, Case{"gptq_act_order", 2e-2},
        Case{"awq", 2e-2}, Case{"w4a16", 2e-2, 2}, Case{"w8a8", 3e-3}),
    [](const auto& test) { return std::string(test.param.model); });

TEST(GpuTransformer, SamplesTheWantedRows) {
  GpuModel gpu(kGolden / "llama3", kSmall, Dtype::bf16, kBlockSize, kBlocks);
  (void)gpu.runner(1);
  gpu.choices = {{.seed = 5, .position = 9, .temperature = 1, .top_p = 0.8f},
                 {.likeliest = 3},
                 {.seed = 6, .position = 9, .temperature = 2, .top_k = 20, .likeliest = 5}};
  const Prompt prompt(read_golden("llama3").tokens);
  const auto layout = kv_layout(gpu.config(), one_group(gpu.config()), kBlockSize, Dtype::bf16);
  const auto logits = gpu.forward(prompt.batch(), layout).value();
  const std::size_t vocab = gpu.config().vocab_size;
  EXPECT_TRUE(std::equal(logits.begin(), logits.begin() + vocab, logits.begin() + 2 * vocab));

  ASSERT_EQ(gpu.samples.tokens.size(), 3u);
  EXPECT_EQ(gpu.samples.K, 5);
  for (std::size_t row = 0; row < 3; ++row) {
    const auto of_row = std::span(logits).subspan(row * vocab, vocab);
    const SampleChoice& choice = gpu.choices[row];
    const Sampled want = sample(of_row, params_of(choice), choice.position);
    EXPECT_EQ(gpu.samples.tokens[row], want.token);
    EXPECT_NEAR(gpu.samples.logprobs[row], want.logprob, 1e-5);
    const auto top = top_logprobs(of_row, choice.likeliest);
    for (std::size_t i = 0; i < top.size(); ++i) {
      EXPECT_EQ(gpu.samples.likeliest_tokens[row * 5 + i], top[i].token);
      EXPECT_NEAR(gpu.samples.likeliest_logprobs[row * 5 + i], top[i].logprob, 1e-5);
    }
  }
}

TEST(GpuTransformer, TakesStepsWithoutTokensAndWithoutLogits) {
  GpuModel gpu(kGolden / "llama2", kSmall, Dtype::f32, kBlockSize, kBlocks);
  (void)gpu.runner(1);
  const auto layout = kv_layout(gpu.config(), one_group(gpu.config()), kBlockSize, Dtype::f32);
  Prompt prompt(read_golden("llama2").tokens);
  const auto all = gpu.forward(prompt.batch(), layout).value();
  prompt.rows.clear();
  EXPECT_TRUE(gpu.forward(prompt.batch(), layout).value().empty());
  EXPECT_TRUE(gpu.samples.tokens.empty());
  const std::vector<std::int32_t> none{0};
  ForwardBatch nothing{};
  nothing.query_start = none;
  EXPECT_TRUE(gpu.forward(nothing, layout).value().empty());
}

TEST(GpuTransformer, SeveralTransformersShareUploadedWeights) {
  GpuModel gpu(kGolden / "qwen3", kSmall, Dtype::bf16, kBlockSize, kBlocks);
  const auto tokens = read_golden("qwen3").tokens;
  const auto first = gpu.runner(1).run_chunked(0, tokens, {tokens.size()});
  const std::vector<TokenId> sampled(gpu.samples.tokens.begin(), gpu.samples.tokens.end());
  gpu.transformer() = gpu.another();
  EXPECT_EQ(gpu.runner(2).run_chunked(0, tokens, {tokens.size()}), first);
  EXPECT_TRUE(std::ranges::equal(gpu.samples.tokens, sampled));
}

TEST(GpuTransformer, AStepAllocatesNothingAndWaitsOnlyWhenAsked) {
  GpuModel gpu(kGolden / "mistral", kSmall, Dtype::f16, kBlockSize, kBlocks);
  auto runner = gpu.runner(1);
  const Prompt prompt(read_golden("mistral").tokens);
  const auto layout = kv_layout(gpu.config(), one_group(gpu.config()), kBlockSize, Dtype::f16);
  ASSERT_TRUE(gpu.forward(prompt.batch(), layout));
  std::set<std::string> names;
  gpu.device().set_faults(
      {.before_call = [&](std::uint64_t, const char* name) { names.insert(name); }});
  const DeviceBuffer arena =
      DeviceBuffer::allocate(gpu.device(), layout.block_bytes() * kBlocks).value();
  names.clear();
  const std::vector<SampleChoice> choices(prompt.rows.size());
  ASSERT_TRUE(gpu.transformer().start(prompt.batch(), choices, arena.data(), layout));
  EXPECT_EQ(names, (std::set<std::string>{"copy", "multiply", "record"}));
  ASSERT_TRUE(gpu.transformer().wait());
  gpu.device().set_faults({});
}

TEST(GpuTransformer, ReportsAFailedStepAndRunsTheNext) {
  GpuModel gpu(kGolden / "llama3", kSmall, Dtype::bf16, kBlockSize, kBlocks);
  (void)gpu.runner(1);
  const Prompt prompt(read_golden("llama3").tokens);
  const auto layout = kv_layout(gpu.config(), one_group(gpu.config()), kBlockSize, Dtype::bf16);
  std::uint64_t before = gpu.device().calls();
  const auto want = gpu.forward(prompt.batch(), layout).value();
  const std::uint64_t calls = gpu.device().calls() - before;
  for (std::uint64_t call = 1; call <= calls; ++call) {
    gpu.device().set_faults({.call = gpu.device().calls() + call, .error = Errc::os_error});
    const auto failed = gpu.forward(prompt.batch(), layout);
    ASSERT_FALSE(failed) << call;
    EXPECT_EQ(failed.error().code, Errc::os_error);
    gpu.device().set_faults({});
    ASSERT_EQ(gpu.forward(prompt.batch(), layout).value(), want) << "after call " << call;
  }
}

TEST(GpuTransformer, ALostDeviceIsReportedAsDeviceLost) {
  const Prompt prompt(read_golden("llama3").tokens);
  std::uint64_t calls = 0, works = 0;
  {
    GpuModel gpu(kGolden / "llama3", kSmall, Dtype::bf16, kBlockSize, kBlocks);
    (void)gpu.runner(1);
    calls = gpu.device().calls(), works = gpu.device().works();
    const auto layout = kv_layout(gpu.config(), one_group(gpu.config()), kBlockSize, Dtype::bf16);
    ASSERT_TRUE(gpu.forward(prompt.batch(), layout));
    calls = gpu.device().calls() - calls, works = gpu.device().works() - works;
  }
  const auto lose = [&](bool by_work, std::uint64_t number) {
    GpuModel gpu(kGolden / "llama3", kSmall, Dtype::bf16, kBlockSize, kBlocks);
    (void)gpu.runner(1);
    const auto layout = kv_layout(gpu.config(), one_group(gpu.config()), kBlockSize, Dtype::bf16);
    if (by_work)
      gpu.device().set_faults({.work = gpu.device().works() + number});
    else
      gpu.device().set_faults({.call = gpu.device().calls() + number});
    const auto failed = gpu.forward(prompt.batch(), layout);
    ASSERT_FALSE(failed) << number;
    EXPECT_EQ(failed.error().code, Errc::device_lost);
    EXPECT_NE(failed.error().text.find("was wanted"), std::string::npos) << failed.error().text;
  };
  for (std::uint64_t call = 1; call <= calls; call += 3) lose(false, call);
  for (std::uint64_t work = 2; work <= works; work += 7) lose(true, work);
}

TEST(GpuTransformer, ReportsUnsupportedKernelsUnlessTheDeviceIsLost) {
  GpuModel gpu(kGolden / "llama3", kSmall, Dtype::bf16, kBlockSize, kBlocks);
  (void)gpu.runner(1);
  const Prompt prompt(read_golden("llama3").tokens);
  auto layout = kv_layout(gpu.config(), one_group(gpu.config()), kBlockSize, Dtype::bf16);
  const auto want = gpu.forward(prompt.batch(), layout).value();
  layout.pages = PageLayout::packed;
  const auto refused = gpu.forward(prompt.batch(), layout);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Errc::unsupported);
  layout.pages = PageLayout::rows;
  EXPECT_EQ(gpu.forward(prompt.batch(), layout).value(), want);
  // The device is lost by earlier work after the kernel was refused, since the stream is slow.
  layout.pages = PageLayout::packed;
  gpu.device().set_faults(
      {.work = gpu.device().works() + 3, .delay = std::chrono::milliseconds(20)});
  const auto lost = gpu.forward(prompt.batch(), layout);
  ASSERT_FALSE(lost);
  EXPECT_EQ(lost.error().code, Errc::device_lost);
}

/// Decodes a few sequences of different lengths, one token each per step, until attention needs
/// more pieces. Records the names of the device's calls for each step.
struct Decode {
  std::vector<std::vector<float>> logits;
  std::vector<std::vector<TokenId>> sampled;
  std::vector<std::multiset<std::string>> calls;

  Decode(GpuModel& gpu, int steps, std::size_t sequences = 3,
         const testing::FakeFaults& faults = {}) {
    auto runner = gpu.runner(4);
    std::vector<PagedRunner::Feed> feeds;
    for (std::size_t b = 0; b < sequences; ++b)
      feeds.push_back({static_cast<int>(b), std::vector<TokenId>(3 + 5 * b, TokenId(7 + b))});
    runner.step(feeds);
    for (auto& feed : feeds) feed.tokens.resize(1);
    for (int step = 0; step < steps; ++step) {
      auto& names = calls.emplace_back();
      testing::FakeFaults noted = faults;
      noted.before_call = [&](std::uint64_t call, const char* name) {
        names.insert(name);
        if (faults.before_call) faults.before_call(call, name);
      };
      gpu.device().set_faults(noted);
      for (auto& row : runner.step(feeds)) logits.push_back(std::move(row));
      gpu.device().set_faults({});
      sampled.emplace_back(gpu.samples.tokens.begin(), gpu.samples.tokens.end());
    }
  }
  std::size_t times(const char* name) const {
    std::size_t sum = 0;
    for (const auto& of_step : calls) sum += of_step.count(name);
    return sum;
  }
};

/// The third model's attention has a window.
class GpuGraphs : public ::testing::TestWithParam<const char*> {
 protected:
  static GpuLimits with(std::size_t graphs) {
    GpuLimits limits = kSmall;
    limits.graphs = graphs;
    return limits;
  }
  GpuModel model(std::size_t graphs) const {
    return GpuModel(kGolden / GetParam(), with(graphs), Dtype::bf16, kBlockSize, kBlocks);
  }
};

TEST_P(GpuGraphs, HaveTheBitsOfTheStepsTheyRecorded) {
  GpuModel eager = model(0), recorded = model(32);
  const Decode want(eager, 24), got(recorded, 24);
  EXPECT_EQ(want.times("launch"), 0u);
  EXPECT_EQ(got.logits, want.logits);
  EXPECT_EQ(got.sampled, want.sampled);
  EXPECT_GE(got.times("launch"), 16u);
  EXPECT_LE(got.times("begin_capture"), 4u);
  // Compare with runs without neighbours and without padding.
  for (int b = 0; b < 3; ++b) {
    const auto alone =
        recorded.runner(9).run_chunked(0, std::vector<TokenId>(27 + 5 * b, 7 + b), {50});
    const std::size_t vocab = recorded.config().vocab_size;
    for (int step = 0; step < 24; ++step) {
      const auto row = std::span(alone).subspan((3 + 5 * b + step) * vocab, vocab);
      EXPECT_TRUE(std::ranges::equal(got.logits[step * 3 + b], row)) << b << ", " << step;
    }
  }
  // All calls of a step: copy of the inputs, launch of the graph, and the waits and the read of the
  // logits in this test.
  EXPECT_EQ(got.calls.back(), (std::multiset<std::string>{"copy", "launch", "record", "synchronize",
                                                          "copy", "record", "synchronize"}));
}

TEST_P(GpuGraphs, SampleTheTokensOfStepsWithoutGraphs) {
  GpuModel eager = model(0), recorded = model(32);
  eager.choices = recorded.choices = {{.seed = 5, .temperature = 1, .top_p = 0.8f, .likeliest = 2},
                                      {.likeliest = 5},
                                      {.seed = 6, .temperature = 2, .top_k = 20}};
  const Decode want(eager, 5), got(recorded, 5);
  EXPECT_EQ(got.sampled, want.sampled);
  EXPECT_GT(got.times("launch"), 1u);
  EXPECT_TRUE(std::ranges::equal(recorded.samples.logprobs, eager.samples.logprobs));
  ASSERT_EQ(recorded.samples.likeliest_tokens.size(), 15u);
  for (const auto& [row, K] : {std::pair{0, 2}, {1, 5}})
    for (int i = 0; i < K; ++i) {
      EXPECT_EQ(recorded.samples.likeliest_tokens[row * 5 + i],
                eager.samples.likeliest_tokens[row * 5 + i]);
      EXPECT_EQ(recorded.samples.likeliest_logprobs[row * 5 + i],
                eager.samples.likeliest_logprobs[row * 5 + i]);
    }
}

/// What fails does not depend on the family.
class GpuGraphFaults : public GpuGraphs {};

TEST_P(GpuGraphFaults, AreForgottenWhenThereAreTooMany) {
  GpuModel gpu = model(2);
  const std::size_t before = gpu.device().leftovers();
  std::size_t recorded = 0;
  for (const std::size_t sequences : {1, 2, 3, 1, 2, 3})
    recorded += Decode(gpu, 3, sequences).times("begin_capture");
  EXPECT_GE(recorded, 6u);
  EXPECT_EQ(gpu.device().leftovers(), before + 1 + 2);  // 1: the arena
}

/// Each call of the first recording fails once, and so does the first launch. The results are the
/// same as without failures.
TEST_P(GpuGraphFaults, AreNotUsedIfTheDeviceCannotRecord) {
  GpuModel eager = model(0);
  const Decode want(eager, 4);
  std::uint64_t before = 0, begun = 0, ended = 0;
  {
    GpuModel gpu = model(32);
    before = gpu.device().calls();
    const auto note = [&](std::uint64_t call, const char* name) {
      if (begun == 0 && std::string(name) == "begin_capture") begun = call;
      if (ended == 0 && std::string(name) == "end_capture") ended = call;
    };
    Decode(gpu, 4, 3, {.before_call = note});
  }
  ASSERT_GT(ended, begun);
  const std::uint64_t launched = ended + 1;
  for (std::uint64_t call = begun; call <= launched;
       call += call + 7 < ended || call == launched ? 7 : 1) {
    GpuModel gpu = model(32);
    ASSERT_EQ(gpu.device().calls(), before);
    const std::size_t leftovers = gpu.device().leftovers();
    const Decode got(gpu, 4, 3, {.call = call, .error = Errc::os_error});
    EXPECT_EQ(got.logits, want.logits) << call;
    EXPECT_EQ(got.times("launch"), call == launched ? 1u : 0u) << call;
    EXPECT_EQ(gpu.device().leftovers(), leftovers + 1) << call;  // 1: the arena; no graph
  }
}

/// During a recording, during a launch, and in work that a graph has started.
TEST_P(GpuGraphFaults, ALostDeviceIsReportedAsDeviceLost) {
  std::uint64_t calls = 0, works = 0, all_calls = 0, all_works = 0;
  {
    GpuModel gpu = model(32);
    calls = gpu.device().calls(), works = gpu.device().works();
    const Decode whole(gpu, 4);
    EXPECT_GE(whole.times("launch"), 1u);
    all_calls = gpu.device().calls(), all_works = gpu.device().works();
  }
  const auto lose = [&](const testing::FakeFaults& faults, std::uint64_t number) {
    GpuModel gpu = model(32);
    try {
      Decode(gpu, 4, 3, faults);
      ADD_FAILURE() << number << ": the lost device was not reported";
    } catch (const std::runtime_error& error) {
      EXPECT_NE(std::string(error.what()).find("was wanted"), std::string::npos) << error.what();
    }
  };
  const std::uint64_t first_call = calls + (all_calls - calls) / 2;  // after the prompts
  for (std::uint64_t call = first_call; call < all_calls; call += 11) lose({.call = call}, call);
  const std::uint64_t first_work = works + (all_works - works) / 2;
  for (std::uint64_t work = first_work; work < all_works; work += 11) lose({.work = work}, work);
}

INSTANTIATE_TEST_SUITE_P(Models, GpuGraphs,
                         ::testing::Values("llama3", "qwen2", "mistral", "gemma3", "qwen3_moe",
                                           "deepseek_v2", "llama4"),
                         [](const auto& test) { return std::string(test.param); });
INSTANTIATE_TEST_SUITE_P(Models, GpuGraphFaults, ::testing::Values("llama3", "qwen2", "mistral"),
                         [](const auto& test) { return std::string(test.param); });

TEST(GpuTransformer, FreesAllDeviceMemory) {
  GpuModel gpu(kGolden / "llama2", kSmall, Dtype::f32, kBlockSize, kBlocks);
  const std::size_t before = gpu.device().leftovers();
  {
    auto other = gpu.another();
    EXPECT_GT(gpu.device().leftovers(), before + 1);
  }
  EXPECT_EQ(gpu.device().leftovers(), before + 1);  // 1: the second mapping
  // A failure in create() leaves nothing allocated.
  const auto config = gpu.config();
  for (std::uint64_t call = 1; call <= 4; ++call) {
    gpu.device().set_faults({.call = gpu.device().calls() + call, .error = Errc::out_of_memory});
    const auto made =
        GpuTransformer::create(gpu.device(), config, nullptr, kSmall, one_group(config));
    ASSERT_FALSE(made);
    EXPECT_EQ(made.error().code, Errc::out_of_memory);
    EXPECT_EQ(gpu.device().leftovers(), before + 1) << call;
  }
}

/// Writes a model of random weights. With narrow weights its attention runs on tensor cores.
void write_wide_model(const TempDirectory& directory, const std::string& dtype) {
  directory.write("config.json", R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 64,
      "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
      "num_key_value_heads": 1, "head_dim": 64, "vocab_size": 80, "rms_norm_eps": 1e-5,
      "max_position_embeddings": 4096, "torch_dtype": ")" +
                                     dtype + "\"}");
  const auto config = load_model_config(directory.path()).value();
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::string header, data;
  for (const auto& tensor : GpuWeights(config).tensors) {
    const bool is_norm = tensor.shape.size() == 1;
    std::vector<std::byte> bytes(tensor.bytes());
    for (std::size_t i = 0; i < bytes.size() / bytes_of(tensor.dtype); ++i)
      store_element(bytes.data(), i, is_norm ? 1 + 0.1f * normal(random) : 0.15f * normal(random),
                    tensor.dtype);
    std::string shape;
    for (const std::int64_t dim : tensor.shape)
      shape += (shape.empty() ? "" : ",") + std::to_string(dim);
    header += (header.empty() ? "{\"" : ",\"") + tensor.name + R"(":{"dtype":")" +
              (tensor.dtype == Dtype::f32    ? "F32"
               : tensor.dtype == Dtype::bf16 ? "BF16"
                                             : "F16") +
              R"(","shape":[)" + shape + R"(],"data_offsets":[)" + std::to_string(data.size()) +
              "," + std::to_string(data.size() + bytes.size()) + "]}";
    data.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  header += "}";
  const std::uint64_t length = header.size();
  directory.write("model.safetensors",
                  std::string(reinterpret_cast<const char*>(&length), 8) + header + data);
}

TEST(GpuTransformer, AttendsToLongSequencesAsTheCpuDoes) {
  for (const auto& [name, dtype, tolerance] : {std::tuple{"bfloat16", Dtype::bf16, 2e-2},
                                               {"float16", Dtype::f16, 3e-3},
                                               {"float32", Dtype::f32, 1e-5}}) {
    const TempDirectory directory;
    write_wide_model(directory, name);
    auto cpu = Transformer::load(directory.path()).value();
    GpuLimits limits = kSmall;
    limits.tokens = limits.logit_rows = 330;
    GpuModel gpu(directory.path(), limits, dtype, 16, 64);
    limits.state_bytes = 0;
    GpuModel cramped(directory.path(), limits, dtype, 16, 64);
    std::mt19937 random(2);
    std::vector<TokenId> tokens(300);
    for (TokenId& token : tokens) token = static_cast<TokenId>(random() % 80);
    PagedRunner on_cpu(cpu, dtype, 16, 64, 1);
    PagedRunner on_gpu = gpu.runner(2), in_many_calls = cramped.runner(3);
    const auto steps = std::vector<std::vector<PagedRunner::Feed>>{
        {{0, tokens}},
        {{1, {tokens.begin(), tokens.begin() + 70}}, {0, {3}}},
        {{0, {5}}, {1, {7}}}};
    for (const auto& feeds : steps) {
      const auto want = on_cpu.step(feeds), got = on_gpu.step(feeds);
      EXPECT_EQ(in_many_calls.step(feeds), got);
      for (std::size_t b = 0; b < feeds.size(); ++b)
        EXPECT_LT(relative_error(got[b], want[b]), tolerance) << name;
    }
    auto one_by_one = gpu.runner(4);
    auto alone = one_by_one.run_chunked(0, tokens, {37});
    auto all = gpu.runner(5).run_chunked(0, tokens, {300});
    if (gpu.is_batch_invariant()) {
      EXPECT_EQ(alone, all) << name;
    }
  }
}

// The CPU rounds the inputs of products to bf16, the GPU their outputs, too.
TEST(GpuTransformer, AnswersAsTheCpuDoesOnTheDemoModel) {
  if (!std::filesystem::exists(kDemo / "model.safetensors")) GTEST_SKIP() << "no demo model";
  auto cpu = Transformer::load(kDemo).value();
  GpuLimits limits = kSmall;
  limits.tokens = 64;
  GpuModel gpu(kDemo, limits, Dtype::bf16, 16, 8);
  PagedRunner on_cpu(cpu, Dtype::bf16, 16, 8, 1);
  PagedRunner on_gpu = gpu.runner(2);
  const std::size_t vocab = cpu.config().vocab_size;
  const std::vector<TokenId> prompts[] = {{2046, 1904, 258, 1803, 1248},
                                          {2046, 416, 632, 882, 267, 392, 321, 339, 11}};
  std::vector<PagedRunner::Feed> feeds{{0, prompts[0]}, {1, prompts[1]}};
  int compared = 0;
  for (int step = 0; step < 12; ++step) {
    const auto want = on_cpu.step(feeds), got = on_gpu.step(feeds);
    std::size_t row = 0;
    for (std::size_t b = 0; b < feeds.size(); ++b) {
      EXPECT_LT(relative_error(got[b], want[b]), 5e-3) << "step " << step << ", sequence " << b;
      row += feeds[b].tokens.size();
      const auto last = std::span(want[b]).last(vocab);
      const auto best = top_logprobs(last, 2);
      if (best[0].logprob - best[1].logprob > 0.1) {
        EXPECT_EQ(gpu.samples.tokens[row - 1], best[0].token) << "step " << step;
        ++compared;
      }
      feeds[b].tokens = {best[0].token};
    }
  }
  EXPECT_GT(compared, 12);
}

}  // namespace
}  // namespace kvhive
