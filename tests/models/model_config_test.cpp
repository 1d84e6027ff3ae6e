#include "models/config/load_model_config.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "models/layer_groups.hpp"
#include "tests/support/temp_directory.hpp"

namespace kvhive {
namespace {

using nlohmann::json;
using testing::HasSubstr;

json llama() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"hidden_size", 64},
          {"intermediate_size", 128},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 8},
          {"num_key_value_heads", 2},
          {"vocab_size", 100},
          {"max_position_embeddings", 512},
          {"rms_norm_eps", 1e-5},
          {"hidden_act", "silu"},
          {"torch_dtype", "bfloat16"},
          {"bos_token_id", 1},
          {"eos_token_id", 2}};
}

json gemma2() {
  return {{"architectures", {"Gemma2ForCausalLM"}},
          {"hidden_size", 64},
          {"intermediate_size", 128},
          {"num_hidden_layers", 5},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"head_dim", 32},
          {"vocab_size", 100},
          {"max_position_embeddings", 512},
          {"hidden_act", "gelu_pytorch_tanh"}};
}

json gemma3() {
  json config = gemma2();
  config["architectures"] = {"Gemma3ForCausalLM"};
  config["num_hidden_layers"] = 13;
  config["sliding_window"] = 100;
  return config;
}

json qwen3_moe() {
  return {{"architectures", {"Qwen3MoeForCausalLM"}},
          {"hidden_size", 64},
          {"intermediate_size", 128},
          {"moe_intermediate_size", 32},
          {"num_experts", 16},
          {"num_experts_per_tok", 4},
          {"num_hidden_layers", 6},
          {"num_attention_heads", 8},
          {"vocab_size", 100},
          {"max_position_embeddings", 512}};
}

json deepseek_v2() {
  return {{"architectures", {"DeepseekV2ForCausalLM"}},
          {"hidden_size", 64},
          {"intermediate_size", 128},
          {"moe_intermediate_size", 32},
          {"num_hidden_layers", 5},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 4},
          {"kv_lora_rank", 512},
          {"q_lora_rank", 48},
          {"qk_rope_head_dim", 64},
          {"qk_nope_head_dim", 32},
          {"v_head_dim", 24},
          {"n_routed_experts", 12},
          {"n_shared_experts", 2},
          {"num_experts_per_tok", 3},
          {"vocab_size", 100},
          {"max_position_embeddings", 512},
          {"torch_dtype", "float32"}};
}

json llama4() {
  return {{"architectures", {"Llama4ForCausalLM"}},
          {"hidden_size", 64},
          {"intermediate_size", 128},
          {"num_hidden_layers", 6},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"vocab_size", 100},
          {"max_position_embeddings", 32768},
          {"torch_dtype", "bfloat16"}};
}

json with(json config, const json& changes) {
  config.update(changes);
  return config;
}

Expected<ModelConfig> load(const json& config, const json& generation = nullptr) {
  const TempDirectory directory;
  directory.write("config.json", config.dump());
  if (!generation.is_null()) directory.write("generation_config.json", generation.dump());
  return load_model_config(directory.path());
}

TEST(ModelConfig, ReadsLlama) {
  const auto config = load(llama());
  ASSERT_TRUE(config) << config.error().text;
  EXPECT_EQ(config->hidden_size, 64);
  EXPECT_EQ(config->head_size, 8);
  EXPECT_EQ(config->kv_heads, 2);
  EXPECT_EQ(config->dtype, Dtype::bf16);
  EXPECT_EQ(config->bos, 1);
  EXPECT_EQ(config->eos, std::vector<TokenId>{2});
  EXPECT_FALSE(config->qkv_bias || config->output_bias || config->has(LayerWeight::q_norm));
}

TEST(ModelConfig, LayoutIsTheModels) {
  const auto layout = kv_layout(*load(llama()), one_group(*load(llama())), 16, Dtype::f16);
  EXPECT_EQ(layout, (KvLayout{2, 2, 8, 16, Dtype::f16}));
}

TEST(ModelConfig, KvHeadsDefaultToHeadsAndNullIsAbsent) {
  EXPECT_EQ(load(with(llama(), {{"num_key_value_heads", nullptr}}))->kv_heads, 8);
  EXPECT_EQ(load(with(llama(), {{"head_dim", nullptr}}))->head_size, 8);
  EXPECT_EQ(load(with(llama(), {{"head_dim", 32}}))->head_size, 32);
}

TEST(ModelConfig, BiasesFollowTheArchitecture) {
  const auto biased = load(with(llama(), {{"attention_bias", true}, {"mlp_bias", true}}));
  EXPECT_TRUE(biased->qkv_bias && biased->output_bias && biased->mlp_bias);
  const auto qwen2 = load(with(llama(), {{"architectures", {"Qwen2ForCausalLM"}}}));
  EXPECT_TRUE(qwen2->qkv_bias && !qwen2->output_bias);
  EXPECT_TRUE(
      load(with(llama(), {{"architectures", {"Qwen3ForCausalLM"}}}))->has(LayerWeight::k_norm));
}

TEST(ModelConfig, SlidingWindowCountsOnlyWhereUsed) {
  const json window{{"sliding_window", 100}};
  EXPECT_EQ(load(with(llama(), window))->sliding_window, 0);
  const auto mistral = with(llama(), {{"architectures", {"MistralForCausalLM"}}});
  EXPECT_EQ(load(with(mistral, window))->sliding_window, 100);
  EXPECT_EQ(load(with(mistral, {{"sliding_window", nullptr}}))->sliding_window, 0);
  auto qwen = with(with(llama(), window), {{"architectures", {"Qwen2ForCausalLM"}}});
  EXPECT_EQ(load(qwen)->sliding_window, 0);
  const auto used = load(with(qwen, {{"use_sliding_window", true}, {"max_window_layers", 1}}));
  EXPECT_EQ(used->window_of(0), 0);
  EXPECT_EQ(used->window_of(1), 100);
}

TEST(ModelConfig, AWindowThatIsLeftOutIsHuggingFacesDefault) {
  const auto mistral = load(with(llama(), {{"architectures", {"MistralForCausalLM"}}}));
  EXPECT_EQ(mistral->sliding_window, 4096);
  const auto qwen = load(with(llama(), {{"architectures", {"Qwen3ForCausalLM"}},
                                        {"num_hidden_layers", 30},
                                        {"use_sliding_window", true}}));
  EXPECT_EQ(qwen->window_of(27), 0);
  EXPECT_EQ(qwen->window_of(28), 4096);
}

TEST(ModelConfig, LayerTypesMustAgreeWithTheWindowFields) {
  const json qwen = with(llama(), {{"architectures", {"Qwen3ForCausalLM"}},
                                   {"use_sliding_window", true},
                                   {"sliding_window", 100},
                                   {"max_window_layers", 1}});
  const json full = "full_attention", sliding = "sliding_attention";
  EXPECT_TRUE(load(with(qwen, {{"layer_types", {full, sliding}}})));
  EXPECT_TRUE(load(with(llama(), {{"layer_types", {full, full}}})));
  for (const json& types : {json{full, full}, json{sliding, full}, json{full}, json("x")}) {
    const auto config = load(with(qwen, {{"layer_types", types}}));
    ASSERT_FALSE(config) << types;
    EXPECT_THAT(config.error().text, HasSubstr("layer_types"));
  }
}

TEST(ModelConfig, FieldsWithNeutralValuesAreAccepted) {
  const json neutral{{"quantization_config", nullptr},
                     {"logit_scale", 1.0},
                     {"partial_rotary_factor", 1.0},
                     {"num_experts", 1},
                     {"alibi", false},
                     {"attn_logit_softcapping", nullptr}};
  const auto config = load(with(llama(), neutral));
  EXPECT_TRUE(config) << config.error().text;
}

TEST(ModelConfig, ReadsRopeScaling) {
  const json llama3{{"rope_type", "llama3"},
                    {"factor", 8.0},
                    {"low_freq_factor", 1.0},
                    {"high_freq_factor", 4.0},
                    {"original_max_position_embeddings", 8192}};
  const auto config = load(with(llama(), {{"rope_scaling", llama3}, {"rope_theta", 500000}}));
  EXPECT_EQ(config->rope.full.scaling.kind, RopeScaling::Kind::llama3);
  EXPECT_EQ(config->rope.full.scaling.original_max_position, 8192);
  EXPECT_EQ(config->rope.full.theta, 500000);
  const auto linear = load(with(llama(), {{"rope_scaling", {{"type", "linear"}, {"factor", 2}}}}));
  EXPECT_EQ(linear->rope.full.scaling.kind, RopeScaling::Kind::linear);
  const auto newer =
      load(with(llama(), {{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 1e6}}}}));
  EXPECT_EQ(newer->rope.full.theta, 1e6);
}

TEST(ModelConfig, YarnReadsWhatTransformersReads) {
  const auto load_yarn = [](json fields, const json& others = json::object()) {
    fields["rope_type"] = "yarn";
    return load(with(with(llama(), others), {{"rope_scaling", fields}}));
  };
  const auto plain = load_yarn({{"factor", 4}, {"original_max_position_embeddings", 128}});
  ASSERT_TRUE(plain) << plain.error().text;
  EXPECT_EQ(plain->rope.full.scaling.kind, RopeScaling::Kind::yarn);
  EXPECT_EQ(plain->rope.full.scaling.beta_fast, 32);
  EXPECT_EQ(plain->rope.full.scaling.beta_slow, 1);
  EXPECT_TRUE(plain->rope.full.scaling.is_truncated);
  EXPECT_NEAR(plain->rope.full.scaling.attention_factor, 1.138629, 1e-6);  // 0.1 ln 4 + 1
  EXPECT_EQ(plain->max_position_embeddings, 512);
  EXPECT_EQ(load_yarn({{"factor", 1}})->rope.full.scaling.attention_factor, 1);
  EXPECT_EQ(
      load_yarn({{"factor", 4}, {"attention_factor", 1.5}})->rope.full.scaling.attention_factor,
      1.5);
  // DeepSeek's: a quotient of two.
  const auto both = load_yarn({{"factor", 4}, {"mscale", 0.5}, {"mscale_all_dim", 2}});
  EXPECT_NEAR(both->rope.full.scaling.attention_factor, 1.0693147 / 1.2772589, 1e-6);
  EXPECT_NEAR(load_yarn({{"factor", 4}, {"mscale", 0.5}})->rope.full.scaling.attention_factor,
              1.138629, 1e-6);
  // Without a factor it is how much longer the context is.
  const auto implied = load_yarn({{"original_max_position_embeddings", 128}, {"factor", nullptr}});
  EXPECT_EQ(implied->rope.full.scaling.factor, 4);
  // Published models leave max_position_embeddings at the original context.
  EXPECT_EQ(load_yarn({{"factor", 4}})->max_position_embeddings, 2048);
  EXPECT_EQ(load_yarn({{"factor", 4}}, {{"original_max_position_embeddings", 64}})
                ->rope.full.scaling.original_max_position,
            64);
}

TEST(ModelConfig, ReadsGemma2AndItsClassesDefaults) {
  const auto config = load(gemma2());
  ASSERT_TRUE(config) << config.error().text;
  EXPECT_EQ(config->attention_soft_cap, 50);
  EXPECT_EQ(config->logit_soft_cap, 30);
  EXPECT_EQ(config->query_scalar, 256);
  EXPECT_TRUE(config->tie_word_embeddings);
  EXPECT_TRUE(config->has(LayerWeight::post_feedforward_norm));
  EXPECT_FALSE(config->has(LayerWeight::q_norm));
  for (const std::int32_t layer : {0, 2, 4}) EXPECT_EQ(config->window_of(layer), 4096) << layer;
  for (const std::int32_t layer : {1, 3}) EXPECT_EQ(config->window_of(layer), 0) << layer;
  const auto said = load(with(gemma2(), {{"attn_logit_softcapping", nullptr},
                                         {"final_logit_softcapping", 20.0},
                                         {"query_pre_attn_scalar", 144},
                                         {"hidden_activation", "gelu_pytorch_tanh"},
                                         {"sliding_window", 7},
                                         {"tie_word_embeddings", false}}));
  ASSERT_TRUE(said) << said.error().text;
  EXPECT_EQ(said->attention_soft_cap, 0);
  EXPECT_EQ(said->logit_soft_cap, 20);
  EXPECT_EQ(said->query_scalar, 144);
  EXPECT_EQ(said->window_of(0), 7);
  EXPECT_FALSE(said->tie_word_embeddings);
}

TEST(ModelConfig, ReadsGemma3WithTwoRotations) {
  const auto config =
      load(with(gemma3(), {{"rope_scaling", {{"rope_type", "linear"}, {"factor", 8}}}}));
  ASSERT_TRUE(config) << config.error().text;
  EXPECT_EQ(config->rope.full.theta, 1e6);
  EXPECT_EQ(config->rope.full.scaling.factor, 8);
  EXPECT_EQ(config->rope.sliding.theta, 1e4);
  EXPECT_EQ(config->rope.sliding.scaling.kind, RopeScaling::Kind::none);
  EXPECT_EQ(config->attention_soft_cap, 0);
  EXPECT_EQ(config->logit_soft_cap, 0);
  EXPECT_TRUE(config->has(LayerWeight::k_norm));
  for (std::int32_t layer = 0; layer < 13; ++layer)
    EXPECT_EQ(config->window_of(layer), layer % 6 == 5 ? 0 : 100) << layer;
  const auto pattern = load(with(gemma3(), {{"sliding_window_pattern", 2}}));
  for (std::int32_t layer = 0; layer < 13; ++layer)
    EXPECT_EQ(pattern->window_of(layer), layer % 2 == 1 ? 0 : 100) << layer;
  // As transformers 5 writes it.
  const json newer{
      {"rope_parameters",
       {{"full_attention", {{"rope_type", "linear"}, {"factor", 4}, {"rope_theta", 5e5}}},
        {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 3e4}}}}}};
  const auto parameters = load(with(gemma3(), newer));
  ASSERT_TRUE(parameters) << parameters.error().text;
  EXPECT_EQ(parameters->rope.full.theta, 5e5);
  EXPECT_EQ(parameters->rope.full.scaling.factor, 4);
  EXPECT_EQ(parameters->rope.sliding.theta, 3e4);
}

TEST(ModelConfig, GemmasLayerTypesDecideWhichLayersSlide) {
  const json full = "full_attention", sliding = "sliding_attention";
  const auto config = load(with(gemma2(), {{"layer_types", {full, full, sliding, full, sliding}}}));
  ASSERT_TRUE(config) << config.error().text;
  for (std::int32_t layer = 0; layer < 5; ++layer)
    EXPECT_EQ(config->window_of(layer), layer == 2 || layer == 4 ? 4096 : 0) << layer;
  for (const json& types :
       {json{full}, json("x"), json{full, full, full, full, "chunked_attention"}}) {
    const auto refused = load(with(gemma2(), {{"layer_types", types}}));
    ASSERT_FALSE(refused) << types;
    EXPECT_THAT(refused.error().text, HasSubstr("layer_types"));
  }
  const auto no_window = load(with(gemma3(), {{"sliding_window", nullptr}}));
  ASSERT_FALSE(no_window);
  EXPECT_THAT(no_window.error().text, HasSubstr("sliding_window"));
}

TEST(ModelConfig, PackedPagesAreNotForSoftCaps) {
  const auto config = load(with(gemma2(), {{"head_dim", 64}}));
  EXPECT_EQ(fastest_kv_layout(*config, one_group(*config), 16, Dtype::bf16).pages,
            PageLayout::rows);
}

TEST(ModelConfig, ReadsExperts) {
  const auto all = load(qwen3_moe());
  ASSERT_TRUE(all) << all.error().text;
  EXPECT_EQ(all->experts, 16);
  EXPECT_EQ(all->experts_per_token, 4);
  EXPECT_EQ(all->expert_inner, 32);
  EXPECT_FALSE(all->are_expert_weights_normed);  // the class's default
  for (std::int32_t layer = 0; layer < 6; ++layer) EXPECT_TRUE(all->is_sparse(layer));
  const auto some = load(with(qwen3_moe(), {{"decoder_sparse_step", 2},
                                            {"mlp_only_layers", {3, 99}},
                                            {"norm_topk_prob", true},
                                            {"num_experts", nullptr},
                                            {"num_local_experts", 8}}));
  ASSERT_TRUE(some) << some.error().text;
  EXPECT_EQ(some->experts, 8);
  EXPECT_TRUE(some->are_expert_weights_normed);
  for (std::int32_t layer = 0; layer < 6; ++layer)
    EXPECT_EQ(some->is_sparse(layer), layer == 1 || layer == 5) << layer;
  const auto window =
      load(with(qwen3_moe(), {{"use_sliding_window", true}, {"sliding_window", 9}}));
  EXPECT_EQ(window->window_of(0), 9);
}

TEST(ModelConfig, FieldsOfGemmaAndExpertsAreRefusedByName) {
  const auto text = [](const json& config) {
    const auto loaded = load(config);
    return loaded ? "no error" : loaded.error().text;
  };
  EXPECT_THAT(text(with(gemma2(), {{"hidden_activation", "gelu"}})),
              HasSubstr("hidden_activation"));
  EXPECT_THAT(text(with(gemma2(), {{"attn_logit_softcapping", -1}})),
              HasSubstr("attn_logit_softcapping = -1"));
  EXPECT_THAT(text(with(gemma2(), {{"query_pre_attn_scalar", 0}})),
              HasSubstr("query_pre_attn_scalar = 0"));
  EXPECT_THAT(text(with(gemma3(), {{"use_bidirectional_attention", true}})),
              HasSubstr("use_bidirectional_attention"));
  EXPECT_THAT(text(with(gemma3(), {{"architectures", {"Gemma3nForConditionalGeneration"}}})),
              HasSubstr("Gemma3nForConditionalGeneration"));
  EXPECT_THAT(text(with(gemma2(), {{"rope_local_base_freq", 1e4}})),
              HasSubstr("rope_local_base_freq"));
  EXPECT_THAT(text(with(qwen3_moe(), {{"num_experts", nullptr}})), HasSubstr("num_experts"));
  EXPECT_THAT(text(with(qwen3_moe(), {{"num_experts_per_tok", 17}})),
              HasSubstr("num_experts_per_tok = 17, expected at most num_experts = 16"));
  EXPECT_THAT(text(with(qwen3_moe(), {{"num_experts_per_tok", nullptr}, {"num_experts", 2}})),
              HasSubstr("num_experts_per_tok is missing, and its default does not fit"));
  EXPECT_THAT(text(with(qwen3_moe(), {{"num_local_experts", 8}})), HasSubstr("num_local_experts"));
  EXPECT_THAT(text(with(qwen3_moe(), {{"mlp_only_layers", {"x"}}})), HasSubstr("mlp_only_layers"));
  EXPECT_THAT(text(with(qwen3_moe(), {{"moe_intermediate_size", 0}})),
              HasSubstr("moe_intermediate_size"));
}

TEST(ModelConfig, ReadsDeepSeekV2AndItsClassesDefaults) {
  const auto config = load(deepseek_v2());
  ASSERT_TRUE(config) << config.error().text;
  EXPECT_EQ(config->latent, (LatentShape{512, 64, 32, 24, 48}));
  EXPECT_EQ(config->head_size, 96);
  EXPECT_EQ(config->rotated_size(), 64);
  EXPECT_EQ(config->value_size(), 24);
  EXPECT_EQ(config->experts, 12);
  EXPECT_EQ(config->shared_experts, 2);
  EXPECT_EQ(config->routed_scale, 1);
  EXPECT_EQ(config->score_factor, 1);
  EXPECT_FALSE(config->are_expert_weights_normed);
  for (std::int32_t layer = 0; layer < 5; ++layer) EXPECT_TRUE(config->is_sparse(layer));
  EXPECT_TRUE(config->has(LayerWeight::q_a) && config->has(LayerWeight::shared_up));
  EXPECT_FALSE(config->has(LayerWeight::q) || config->has(LayerWeight::k));
}

TEST(ModelConfig, ReadsDeepSeekV2sFields) {
  const auto config = load(with(deepseek_v2(), {{"q_lora_rank", nullptr},
                                                {"head_dim", 64},
                                                {"first_k_dense_replace", 1},
                                                {"moe_layer_freq", 2},
                                                {"topk_method", "group_limited_greedy"},
                                                {"n_group", 4},
                                                {"topk_group", 2},
                                                {"routed_scaling_factor", 16.0},
                                                {"n_shared_experts", nullptr},
                                                {"rope_scaling",
                                                 {{"type", "yarn"},
                                                  {"factor", 40},
                                                  {"mscale", 0.707},
                                                  {"mscale_all_dim", 0.707},
                                                  {"original_max_position_embeddings", 4096}}}}));
  ASSERT_TRUE(config) << config.error().text;
  EXPECT_EQ(config->latent.query_rank, 0);
  EXPECT_TRUE(config->has(LayerWeight::q));
  EXPECT_FALSE(config->has(LayerWeight::q_a) || config->has(LayerWeight::shared_up));
  for (std::int32_t layer = 0; layer < 5; ++layer)
    EXPECT_EQ(config->is_sparse(layer), layer == 2 || layer == 4) << layer;
  EXPECT_EQ(config->expert_groups.count, 4);
  EXPECT_EQ(config->expert_groups.chosen, 2);
  EXPECT_EQ(config->routed_scale, 16);
  EXPECT_EQ(config->max_position_embeddings, 163840);
  EXPECT_EQ(config->rope.full.scaling.attention_factor, 1);
  EXPECT_NEAR(config->score_factor, std::pow(0.1 * 0.707 * std::log(40) + 1, 2), 1e-6);
  const auto normed = load(with(deepseek_v2(), {{"norm_topk_prob", true}}));
  ASSERT_TRUE(normed) << normed.error().text;
  EXPECT_TRUE(normed->are_expert_weights_normed);
  const auto dense = load(with(deepseek_v2(), {{"n_routed_experts", nullptr}}));
  ASSERT_TRUE(dense) << dense.error().text;
  EXPECT_FALSE(dense->is_sparse(4));
}

TEST(ModelConfig, LatentRowsAreOfBf16AndFp8) {
  const auto config = load(deepseek_v2()).value();
  const LayerGroups groups = one_group(config);
  for (const auto& [asked, dtype, bytes] : {std::tuple{KvCacheDtype::of_model, Dtype::bf16, 1152u},
                                            {KvCacheDtype::bf16, Dtype::bf16, 1152u},
                                            {KvCacheDtype::fp8, Dtype::e4m3, 656u},
                                            {KvCacheDtype::e4m3, Dtype::e4m3, 656u}}) {
    ASSERT_EQ(kv_dtype_of(asked, config), dtype);
    const KvLayout layout = fastest_kv_layout(config, groups, 16, dtype);
    EXPECT_EQ(layout.kind, KvKind::latent);
    EXPECT_EQ(layout.pages, PageLayout::rows);
    EXPECT_EQ(layout.layer_bytes(), 16 * bytes);
    EXPECT_EQ(layout.block_bytes(), 5 * 16 * bytes);
  }
  for (const KvCacheDtype asked :
       {KvCacheDtype::f32, KvCacheDtype::f16, KvCacheDtype::e5m2, KvCacheDtype::int8}) {
    const auto refused = kv_dtype_of(asked, config);
    ASSERT_FALSE(refused);
    EXPECT_THAT(refused.error().text, HasSubstr("DeepseekV2ForCausalLM keeps latent rows"));
  }
  EXPECT_EQ(kv_dtype_of(KvCacheDtype::of_model, *load(llama())), Dtype::bf16);
  EXPECT_EQ(kv_dtype_of(KvCacheDtype::f32, *load(llama())), Dtype::f32);
}

TEST(ModelConfig, FieldsOfDeepSeekAreRefusedByNameAndValue) {
  const json grouped = {{"topk_method", "group_limited_greedy"}, {"n_group", 4}, {"topk_group", 2}};
  for (const auto& [changes, named] : std::initializer_list<std::pair<json, const char*>>{
           {{{"architectures", {"DeepseekV3ForCausalLM"}}}, "DeepseekV3ForCausalLM"},
           {{{"kv_lora_rank", 256}}, "kv_lora_rank = 256, expected 512"},
           {{{"qk_rope_head_dim", 32}}, "qk_rope_head_dim = 32, expected 64"},
           {{{"qk_nope_head_dim", 12}}, "qk_nope_head_dim = 12, expected a multiple of 8"},
           {{{"v_head_dim", 4}}, "v_head_dim = 4"},
           {{{"v_head_dim", nullptr}}, "v_head_dim is missing"},
           {{{"q_lora_rank", 0}}, "q_lora_rank = 0"},
           {{{"num_key_value_heads", 2}}, "num_key_value_heads = 2"},
           {{{"topk_method", "noaux_tc"}}, "topk_method = \"noaux_tc\""},
           {{{"scoring_func", "sigmoid"}}, "scoring_func = \"sigmoid\""},
           {{{"norm_topk_prob", true}, {"routed_scaling_factor", 2.5}}, "norm_topk_prob = true"},
           {{{"num_experts_per_tok", 13}}, "num_experts_per_tok = 13, expected at most n_routed"},
           {{{"n_shared_experts", 4096}, {"moe_intermediate_size", 1 << 20}},
            "n_shared_experts = 4096, expected so few that they are at most 1048576 wide together"},
           {with(grouped, {{"n_group", 5}}), "n_group = 5"},
           {with(grouped, {{"topk_group", 5}}), "topk_group = 5"},
           {with(grouped, {{"num_experts_per_tok", 7}}), "num_experts_per_tok = 7"},
           {with(grouped, {{"topk_group", nullptr}}), "topk_group is missing"},
           {{{"attention_bias", true}}, "attention_bias = true"},
           {{{"mlp_bias", true}}, "mlp_bias = true"}}) {
    const auto config = load(with(deepseek_v2(), changes));
    ASSERT_FALSE(config) << named;
    EXPECT_THAT(config.error().text, HasSubstr(named));
  }
}

/// As Gemma 3 of 4 billion weights is published: what is left out, its class knows.
TEST(ModelConfig, ReadsTheTextPartOfAMultimodalModel) {
  const json text{{"hidden_size", 2560},
                  {"intermediate_size", 10240},
                  {"model_type", "gemma3_text"},
                  {"num_hidden_layers", 34},
                  {"rope_scaling", {{"factor", 8.0}, {"rope_type", "linear"}}},
                  {"sliding_window", 1024}};
  const json whole{{"architectures", {"Gemma3ForConditionalGeneration"}},
                   {"eos_token_id", {1, 106}},
                   {"torch_dtype", "bfloat16"},
                   {"text_config", text},
                   {"vision_config", {{"hidden_size", 1152}}}};
  const auto config = load(whole);
  ASSERT_TRUE(config) << config.error().text;
  EXPECT_EQ(config->architecture->name, "Gemma3ForCausalLM");
  EXPECT_EQ(config->heads, 8);
  EXPECT_EQ(config->kv_heads, 4);
  EXPECT_EQ(config->head_size, 256);
  EXPECT_EQ(config->vocab_size, 262208);
  EXPECT_EQ(config->max_position_embeddings, 131072);
  EXPECT_EQ(config->dtype, Dtype::bf16);
  EXPECT_EQ(config->eos, (std::vector<TokenId>{1, 106}));
  EXPECT_TRUE(config->tie_word_embeddings);
  EXPECT_EQ(config->window_of(0), 1024);
  EXPECT_EQ(config->window_of(5), 0);

  json outer_counts = whole;
  outer_counts["text_config"].update({{"eos_token_id", 1}, {"dtype", "float32"}});
  EXPECT_EQ(load(outer_counts)->eos, (std::vector<TokenId>{1, 106}));
  EXPECT_EQ(load(outer_counts)->dtype, Dtype::bf16);
  outer_counts["eos_token_id"] = nullptr;
  EXPECT_EQ(load(outer_counts)->eos, (std::vector<TokenId>{1}));

  json without = whole;
  without.erase("text_config");
  EXPECT_THAT(load(without).error().text, HasSubstr("text_config is missing"));
  EXPECT_THAT(load(with(whole, {{"text_config", with(text, {{"head_dim", 7}})}})).error().text,
              HasSubstr("head size 7 is odd"));
}

TEST(ModelConfig, ReadsLlama4AndItsClassesDefaults) {
  const auto config = load(llama4());
  ASSERT_TRUE(config) << config.error().text;
  EXPECT_EQ(config->experts, 16);
  EXPECT_EQ(config->experts_per_token, 1);
  EXPECT_EQ(config->expert_inner, 128);
  EXPECT_EQ(config->intermediate_size, 16384);
  EXPECT_EQ(config->shared_experts, 1);
  EXPECT_EQ(config->expert_scores, ExpertScores::sigmoid);
  EXPECT_EQ(config->rms_norm_eps, 1e-5f);
  EXPECT_EQ(config->rope.full.theta, 500000);
  EXPECT_TRUE(config->has_l2_norms);
  EXPECT_EQ(config->query_tuning.floor, 8192);
  EXPECT_EQ(config->query_tuning.scale, 0.1f);
  for (std::int32_t layer = 0; layer < 6; ++layer) {
    EXPECT_TRUE(config->is_sparse(layer));
    EXPECT_EQ(config->is_rotated(layer), layer != 3);
    EXPECT_EQ(config->chunk_of(layer), layer != 3 ? 8192 : 0);
  }
}

TEST(ModelConfig, ReadsLlama4sFields) {
  const auto config =
      load(with(llama4(), {{"no_rope_layers", {0, 1, 1, 0, 1, 1}},
                           {"attention_chunk_size", 64},
                           {"num_local_experts", 8},
                           {"num_experts_per_tok", 2},
                           {"intermediate_size_mlp", 96},
                           {"interleave_moe_layer_step", 2},
                           {"use_qk_norm", false},
                           {"attn_temperature_tuning", 0},
                           {"layer_types",
                            {"full_attention", "chunked_attention", "chunked_attention",
                             "full_attention", "chunked_attention", "chunked_attention"}}}));
  ASSERT_TRUE(config) << config.error().text;
  EXPECT_EQ(config->intermediate_size, 96);
  EXPECT_EQ(config->experts, 8);
  EXPECT_FALSE(config->has_l2_norms);
  EXPECT_EQ(config->query_tuning.floor, 0) << "none";
  for (std::int32_t layer = 0; layer < 6; ++layer) {
    EXPECT_EQ(config->is_sparse(layer), layer % 2 == 1) << layer;
    EXPECT_EQ(config->chunk_of(layer), layer % 3 == 0 ? 0 : 64) << layer;
  }
  // As Scout is published: no pair of dimensions is between the two bounds.
  EXPECT_TRUE(load(with(llama4(), {{"rope_scaling",
                                    {{"rope_type", "llama3"},
                                     {"factor", 16.0},
                                     {"low_freq_factor", 1.0},
                                     {"high_freq_factor", 1.0},
                                     {"original_max_position_embeddings", 8192}}}})));
  const auto listed = load(with(llama4(), {{"moe_layers", {0, 4}}, {"no_rope_layer_interval", 2}}));
  ASSERT_TRUE(listed) << listed.error().text;
  EXPECT_TRUE(listed->is_sparse(0) && !listed->is_sparse(1) && listed->is_sparse(4));
  EXPECT_FALSE(listed->is_rotated(1) || listed->is_rotated(5));
  EXPECT_EQ(load(with(llama4(), {{"attn_temperature_tuning", 4}}))->query_tuning.floor, 8192);
}

TEST(ModelConfig, FieldsOfLlama4AreRefusedByNameAndValue) {
  for (const auto& [changes, named] : std::initializer_list<std::pair<json, const char*>>{
           {{{"attention_chunk_size", nullptr}}, "attention_chunk_size is missing"},
           {{{"attention_chunk_size", 0}}, "attention_chunk_size = 0"},
           {{{"no_rope_layers", {1, 0}}}, "no_rope_layers = [1,0]"},
           {{{"no_rope_layers", {1, 0, 2, 1, 1, 1}}}, "no_rope_layers = [1,0,2,1,1,1]"},
           {{{"no_rope_layer_interval", 0}}, "no_rope_layer_interval = 0"},
           {{{"floor_scale", 0}}, "floor_scale = 0"},
           {{{"moe_layers", {"x"}}}, "moe_layers"},
           {{{"num_experts_per_tok", 17}}, "expected at most num_local_experts = 16"},
           {{{"layer_types", {"full_attention"}}}, "as no_rope_layers says"},
           {{{"quantization_config",
              {{"quant_method", "fp8"}, {"fmt", "e4m3"}, {"activation_scheme", "dynamic"}}}},
            "quantization_config"},
           {{{"n_routed_experts", 4}}, "n_routed_experts"}}) {
    const auto config = load(with(llama4(), changes));
    ASSERT_FALSE(config) << named;
    EXPECT_THAT(config.error().text, HasSubstr(named));
  }
}

TEST(ModelConfig, GenerationConfigOverridesEos) {
  EXPECT_EQ(load(llama(), {{"eos_token_id", {2, 7}}})->eos, (std::vector<TokenId>{2, 7}));
  EXPECT_EQ(load(llama(), {{"temperature", 1}})->eos, std::vector<TokenId>{2});
  EXPECT_FALSE(load(llama(), {{"eos_token_id", "x"}}));
}

struct Refusal {
  json changes;
  const char* named;
};

class RefusedConfig : public testing::TestWithParam<Refusal> {};

TEST_P(RefusedConfig, NamesFieldAndValue) {
  const auto config = load(with(llama(), GetParam().changes));
  ASSERT_FALSE(config);
  EXPECT_THAT(config.error().text, HasSubstr("config.json"));
  EXPECT_THAT(config.error().text, HasSubstr(GetParam().named));
  EXPECT_EQ(config.error().text.find('\n'), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(
    Fields, RefusedConfig,
    testing::Values(
        Refusal{{{"architectures", {"GPT2LMHeadModel"}}}, "GPT2LMHeadModel"},
        Refusal{{{"architectures", nullptr}}, "architectures"},
        Refusal{{{"architectures", {1}}}, "architectures"},
        Refusal{{{"hidden_act", "gelu"}}, "gelu"},
        Refusal{{{"hidden_size", nullptr}}, "hidden_size is missing"},
        Refusal{{{"hidden_size", "64"}}, "hidden_size = \"64\""},
        Refusal{{{"hidden_size", 64.5}}, "hidden_size = 64.5"},
        Refusal{{{"hidden_size", -64}}, "hidden_size = -64"},
        Refusal{{{"hidden_size", 18446744073709551615u}}, "hidden_size = 18446744073709551615"},
        Refusal{{{"hidden_size", 65}}, "num_attention_heads"}, Refusal{{{"head_dim", 7}}, "odd"},
        Refusal{{{"head_dim", 100}}, "multiples of 8"},
        Refusal{{{"num_hidden_layers", 0}}, "num_hidden_layers = 0"},
        Refusal{{{"num_hidden_layers", 1000000}}, "num_hidden_layers = 1000000"},
        Refusal{{{"num_key_value_heads", 3}}, "num_key_value_heads = 3"},
        Refusal{{{"rms_norm_eps", "tiny"}}, "rms_norm_eps"},
        Refusal{{{"rope_theta", 0}}, "rope_theta = 0"},
        Refusal{{{"rope_scaling", {{"rope_type", "longrope"}, {"factor", 4}}}}, "longrope"},
        Refusal{{{"rope_scaling", {{"rope_type", "yarn"}, {"factor", 0.5}}}}, "factor = 0.5"},
        Refusal{{{"rope_scaling", {{"rope_type", "yarn"}, {"factor", 4}, {"beta_slow", 40}}}},
                "beta_slow = 40"},
        Refusal{{{"rope_scaling", {{"rope_type", "yarn"}, {"factor", 4}}}, {"rope_theta", 1}},
                "rope_theta"},
        Refusal{
            {{"rope_scaling", {{"rope_type", "yarn"}, {"original_max_position_embeddings", 32}}},
             {"original_max_position_embeddings", 64}},
            "original_max_position_embeddings = 64"},
        Refusal{{{"rope_scaling", {{"type", "dynamic"}, {"factor", 4}}}}, "dynamic"},
        Refusal{{{"rope_scaling", {{"rope_type", "llama3"}, {"factor", 8}}}}, "low_freq_factor"},
        Refusal{{{"rope_scaling", "linear"}}, "rope_scaling"},
        Refusal{{{"quantization_config", {{"quant_method", "hqq"}, {"bits", 4}}}},
                "quantization_config: quant_method = \"hqq\""},
        Refusal{{{"quantization_config", {{"bits", 4}}}}, "quant_method is missing"},
        Refusal{{{"compression_config", {{"format", "int-quantized"}}}}, "compression_config"},
        Refusal{{{"attn_logit_softcapping", 50.0}}, "attn_logit_softcapping = 50.0"},
        Refusal{{{"final_logit_softcapping", 30.0}}, "final_logit_softcapping"},
        Refusal{{{"logit_scale", 0.0625}}, "logit_scale = 0.0625"},
        Refusal{{{"logits_scaling", 8}}, "logits_scaling = 8"},
        Refusal{{{"embedding_multiplier", 12}}, "embedding_multiplier = 12"},
        Refusal{{{"residual_multiplier", 0.22}}, "residual_multiplier"},
        Refusal{{{"attention_multiplier", 0.015}}, "attention_multiplier"},
        Refusal{{{"partial_rotary_factor", 0.5}}, "partial_rotary_factor = 0.5"},
        Refusal{{{"rope_parameters", {{"rope_type", "default"}, {"partial_rotary_factor", 0.5}}}},
                "rope_parameters: partial_rotary_factor = 0.5"},
        Refusal{{{"rope_parameters", {{"rope_type", "default"}}},
                 {"rope_scaling", {{"rope_type", "linear"}, {"factor", 2}}}},
                "rope_scaling"},
        Refusal{{{"no_rope_layers", {1, 0}}}, "no_rope_layers"},
        Refusal{{{"position_embedding_type", "alibi"}}, "alibi"},
        Refusal{{{"clip_qkv", 8}}, "clip_qkv = 8"},
        Refusal{{{"use_qk_norm", true}}, "use_qk_norm = true"},
        Refusal{{{"num_local_experts", 8}}, "num_local_experts = 8"},
        Refusal{{{"n_routed_experts", 8}}, "n_routed_experts = 8"},
        Refusal{{{"n_shared_experts", 2}}, "n_shared_experts = 2"},
        Refusal{{{"torch_dtype", "int8"}}, "int8"},
        Refusal{{{"tie_word_embeddings", "yes"}}, "tie_word_embeddings"},
        Refusal{{{"eos_token_id", 100}}, "eos_token_id = 100"},
        Refusal{{{"eos_token_id", {2, "x"}}}, "eos_token_id"}));

TEST(ModelConfig, BrokenFilesAreRefusedByName) {
  const TempDirectory directory;
  EXPECT_EQ(load_model_config(directory.path()).error().code, Errc::not_found);
  for (const char* content : {"", "{", "[]", "7", "\xff\xfe", "{\"architectures\": [\"Llama"}) {
    directory.write("config.json", content);
    const auto config = load_model_config(directory.path());
    ASSERT_FALSE(config);
    EXPECT_THAT(config.error().text, HasSubstr("config.json"));
  }
}

}  // namespace
}  // namespace kvhive
