#include "config/option_table.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

#include "tests/config/options_file.hpp"

namespace kvhive {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

/// Sets a field by its name, as a flag does.
Expected<void> set(Options& options, const std::string& name, const std::string& text) {
  auto field = find_option(name);
  if (!field) return forward_error(field);
  return set_option(options, **field, text);
}

std::map<std::string, std::string> flags_of(const Options& options) {
  const std::vector<std::string> flags = to_flags(options);
  std::map<std::string, std::string> values;
  for (std::size_t i = 0; i + 1 < flags.size(); i += 2) values[flags[i]] = flags[i + 1];
  return values;
}

/// A value of a field that is not its default: as a flag, in TOML, and as to_flags() writes it.
struct Sample {
  std::string name, flag, toml, canonical;
};
const Sample kWritten[] = {
    {"model", "/models/small", "\"/models/small\"", "/models/small"},
    {"model-options", "a=engines:2", "\"a=engines:2\"", "a=engines:2"},
    {"lora-modules", "a=/x,b=/y", "\"a=/x,b=/y\"", "a=/x,b=/y"},
    {"socket", "/run/x.sock", "\"/run/x.sock\"", "/run/x.sock"},
    {"engines", "3", "3", "3"},
    {"threads", "7", "7", "7"},
    {"cpu-bind", "0-3|4,6", "\"0-3|4,6\"", "0-3|4,6"},
    {"block-size", "32", "32", "32"},
    {"gpu-memory-utilization", "0.75", "0.75", "0.75"},
    {"kv-cache-memory-bytes", "512M", "\"512M\"", "536870912B"},
    {"num-gpu-blocks-override", "100", "100", "100"},
    {"swap-space", "4", "4", "4294967296B"},
    {"max-model-len", "4096", "4096", "4096"},
    {"max-num-seqs", "16", "16", "16"},
    {"max-num-batched-tokens", "512", "512", "512"},
    {"enable-prefix-caching", "false", "false", "false"},
    {"long-prefill-token-threshold", "256", "256", "256"},
    {"num-speculative-tokens", "5", "5", "5"},
    {"prompt-lookup-max", "7", "7", "7"},
    {"prompt-lookup-min", "3", "3", "3"},
    {"prefix-cache-retention-interval", "4096", "4096", "4096"},
    {"single-flight", "false", "false", "false"},
    {"async-scheduling", "false", "false", "false"},
    {"batch-invariant", "true", "true", "true"},
    {"enforce-eager", "true", "true", "true"},
    {"core-dumps", "true", "true", "true"},
    {"watermark", "0.0625", "0.0625", "0.0625"},
    {"kv-cache-metrics-sample", "0.25", "0.25", "0.25"},
    {"seed", "18446744073709551615", "123456789012", "18446744073709551615"},
    {"domains", "a=bob,7;b=@9", "{b = \"@9\", a = [\"bob\", 7]}", "a=bob,7;b=@9"},
    {"max-queued-tokens", "5000", "5000", "5000"},
    {"shares", "*=weight:2", "{\"*\" = {weight = 2}}", "*=weight:2"},
    {"channel-bytes-per-domain", "64M", "\"64M\"", "67108864B"},
    {"socket-access", "@kv", "\"@kv\"", "@kv"},
    {"user", "kvhive", "\"kvhive\"", "kvhive"},
    {"lock-metadata", "true", "true", "true"},
    {"log-file", "/var/log/k.log", "\"/var/log/k.log\"", "/var/log/k.log"},
};

/// One sample for each field. For an option with choices it is the last choice, or the first if the
/// last is the default.
std::vector<Sample> samples() {
  std::vector<Sample> samples(std::begin(kWritten), std::end(kWritten));
  for (const OptionField& field : option_fields()) {
    const std::string name(field.name);
    const bool is_written = std::any_of(samples.begin(), samples.end(),
                                        [&](const Sample& sample) { return sample.name == name; });
    if (is_written || field.type.kind != ValueKind::choice) continue;
    std::string value(field.type.choices.back());
    if (value == field.type.format({})) value = field.type.choices.front();
    samples.push_back({name, value, "\"" + value + "\"", value});
  }
  return samples;
}
const std::vector<Sample> kSamples = samples();

TEST(Options, EveryFieldHasASampleAndAHelpText) {
  ASSERT_EQ(option_fields().size(), kSamples.size());
  for (const OptionField& field : option_fields()) {
    EXPECT_TRUE(std::any_of(kSamples.begin(), kSamples.end(), [&](const Sample& sample) {
      return sample.name == field.name;
    })) << field.name;
    EXPECT_FALSE(field.help.empty()) << field.name;
  }
}

TEST(Options, AFlagSetsItsFieldAndNoOther) {
  const auto defaults = flags_of({});
  for (const Sample& sample : kSamples) {
    Options options;
    ASSERT_TRUE(set(options, sample.name, sample.flag).has_value()) << sample.name;
    auto expected = defaults;
    ASSERT_NE(expected["--" + sample.name], sample.canonical) << sample.name;
    expected["--" + sample.name] = sample.canonical;
    EXPECT_EQ(flags_of(options), expected) << sample.name;
  }
}

TEST(Options, TheShareOfMeasuredBlocksIsOneInSoMany) {
  Options options;
  EXPECT_EQ(options.life_stride(1000), 0u);
  for (const auto& [share, stride] :
       {std::pair{1.0, 1u}, {0.5, 2u}, {0.01, 100u}, {0.001, 125u}, {1e-6, 125u}}) {
    options.kv_cache_metrics_sample = share;
    EXPECT_EQ(options.life_stride(1000), stride) << share;
    EXPECT_EQ(options.life_stride(3), 1u) << "a small pool";
  }
}

TEST(Options, EveryChoiceIsFormattedAsItIsParsed) {
  for (const OptionField& field : option_fields()) {
    if (field.type.kind != ValueKind::choice) continue;
    for (const std::string_view choice : field.type.choices) {
      Options options;
      ASSERT_TRUE(set_option(options, field, std::string(choice))) << field.name << " " << choice;
      EXPECT_EQ(field.type.format(options), choice) << field.name;
    }
  }
}

TEST(Options, UnderscoresAndDashesAreAlike) {
  EXPECT_EQ((*find_option("max_num_seqs"))->name, "max-num-seqs");
  EXPECT_EQ((*find_option("max-num_seqs"))->name, "max-num-seqs");
}

TEST(Options, FlagsCarryAllOptionsToAChild) {
  Options options;
  for (const Sample& sample : kSamples) ASSERT_TRUE(set(options, sample.name, sample.flag));
  options.gpu_memory_utilization = 1.0 / 3;
  options.kv_cache_memory_bytes = (std::size_t{1} << 40) + 1;
  Options child;
  const std::vector<std::string> flags = to_flags(options);
  ASSERT_EQ(flags.size(), 2 * option_fields().size());
  for (std::size_t i = 0; i < flags.size(); i += 2)
    ASSERT_TRUE(set(child, flags[i].substr(2), flags[i + 1])) << flags[i];
  EXPECT_EQ(flags_of(child), flags_of(options));
  EXPECT_EQ(child.gpu_memory_utilization, options.gpu_memory_utilization);
  EXPECT_EQ(child.kv_cache_memory_bytes, options.kv_cache_memory_bytes);
  EXPECT_EQ(child.swap_space, options.swap_space);
  EXPECT_EQ(child.seed, options.seed);
  EXPECT_FALSE(child.enable_prefix_caching);
}

TEST(Options, ABareSwapSpaceIsInGiBAndABareKvCacheInBytes) {
  Options options;
  ASSERT_TRUE(set(options, "swap-space", "1.5"));
  EXPECT_EQ(options.swap_space, std::size_t{3} << 29);
  ASSERT_TRUE(set(options, "swap-space", "64MiB"));
  EXPECT_EQ(options.swap_space, std::size_t{64} << 20);
  ASSERT_TRUE(set(options, "kv-cache-memory-bytes", "1000"));
  EXPECT_EQ(options.kv_cache_memory_bytes, 1000u);
  ASSERT_TRUE(set(options, "kv-cache-memory-bytes", "2 GiB"));
  EXPECT_EQ(options.kv_cache_memory_bytes, std::size_t{2} << 30);
}

TEST(Options, BooleansHaveSeveralSpellings) {
  Options options;
  for (const char* text : {"false", "0", "off"}) {
    options.enable_prefix_caching = true;
    ASSERT_TRUE(set(options, "enable-prefix-caching", text));
    EXPECT_FALSE(options.enable_prefix_caching);
  }
  for (const char* text : {"true", "1", "on"}) {
    options.enable_prefix_caching = false;
    ASSERT_TRUE(set(options, "enable-prefix-caching", text));
    EXPECT_TRUE(options.enable_prefix_caching);
  }
}

TEST(Options, AWrongValueIsNamedWithItsFieldAndChangesNothing) {
  const std::pair<const char*, const char*> bad[] = {{"engines", "-1"},
                                                     {"engines", "two"},
                                                     {"engines", "4294967296"},
                                                     {"block-size", "16.0"},
                                                     {"seed", "1e3"},
                                                     {"watermark", "little"},
                                                     {"max-model-len", ""},
                                                     {"swap-space", "4X"},
                                                     {"kv-cache-memory-bytes", "-5"},
                                                     {"threads", "3 "},
                                                     {"gpu-memory-utilization", "0.5x"},
                                                     {"enable-prefix-caching", "maybe"}};
  for (const auto& [name, text] : bad) {
    Options options;
    const auto before = flags_of(options);
    const auto refused = set(options, name, text);
    ASSERT_FALSE(refused.has_value()) << name << " " << text;
    EXPECT_EQ(refused.error().code, Errc::bad_argument);
    EXPECT_THAT(refused.error().text, HasSubstr(name));
    EXPECT_THAT(refused.error().text, HasSubstr("'" + std::string(text) + "'"));
    EXPECT_EQ(flags_of(options), before);
  }
}

TEST(Options, AnUnknownNameSuggestsTheNearest) {
  const std::pair<const char*, const char*> typos[] = {{"blok-size", "block-size"},
                                                       {"max_num_seq", "max-num-seqs"},
                                                       {"preemption", "preemption-mode"},
                                                       {"loglevel", "log-level"},
                                                       {"modle", "model"}};
  for (const auto& [typo, meant] : typos) {
    const auto found = find_option(typo);
    ASSERT_FALSE(found.has_value()) << typo;
    EXPECT_EQ(found.error().text, "unknown option '" + std::string(typo) + "'; did you mean '" +
                                      std::string(meant) + "'?");
  }
}

// -- the file

TEST_F(OptionsFile, SetsEveryFieldWithDashesOrUnderscores) {
  for (const Sample& sample : kSamples) {
    std::string underscored = sample.name;
    std::replace(underscored.begin(), underscored.end(), '-', '_');
    for (const std::string& key : {sample.name, underscored}) {
      options = {};
      const auto loaded = load(key + " = " + sample.toml + "\n");
      ASSERT_TRUE(loaded.has_value()) << key << ": " << loaded.error().text;
      EXPECT_EQ(flags_of(options).at("--" + sample.name),
                sample.name == "seed" ? sample.toml : sample.canonical);
    }
  }
}

/// Paths are easier to read as a list or a table than in one text.
TEST_F(OptionsFile, ModelsAndAdaptersMayBeListsAndTables) {
  ASSERT_TRUE(load("model = [\"a=/x\", \"b=/y\"]\nlora-modules = [\"a:poet=/p\"]").has_value());
  EXPECT_EQ(options.model, "a=/x,b=/y");
  EXPECT_EQ(options.lora_modules, "a:poet=/p");
  const auto loaded = load(
      "[model]\na = \"/x\"\nb = \"/y\"\n[lora-modules]\n\"b:poet\" = \"/p\"\n[model-options]\n"
      "b = {engines = 2, min-blocks = \"25%\"}");
  ASSERT_TRUE(loaded.has_value()) << loaded.error().text;
  EXPECT_EQ(options.model, "a=/x,b=/y");
  EXPECT_EQ(options.lora_modules, "b:poet=/p");
  EXPECT_EQ(options.model_options, "b=engines:2,min-blocks:25%");
  const auto comma = load("model = [\"/x,y\"]");
  ASSERT_FALSE(comma.has_value());
  EXPECT_THAT(comma.error().text, HasSubstr("model: '/x,y' has a comma"));
  EXPECT_THAT(load("model = [[1]]").error().text, HasSubstr("model must be a string"));
}

TEST_F(OptionsFile, LeavesAloneWhatItDoesNotName) {
  options.engines = 5;
  ASSERT_TRUE(load("# nothing but\nblock-size = 8\n").has_value());
  EXPECT_EQ(options.engines, 5u);
  EXPECT_EQ(options.block_size, 8u);
}

TEST_F(OptionsFile, NumbersKeepAllTheirDigits) {
  ASSERT_TRUE(load("gpu-memory-utilization = 0.123456789012\nswap-space = 1234567.5\n"));
  EXPECT_EQ(options.gpu_memory_utilization, 0.123456789012);
  EXPECT_EQ(options.swap_space, std::size_t{2469135} << 29);
}

TEST_F(OptionsFile, ErrorsNameTheFile) {
  const std::pair<const char*, const char*> bad[] = {
      {"block-size = 16\nmax-seqs = 3\n", "did you mean 'max-num-seqs'"},
      {"block-size = \"many\"\n", "block-size: 'many'"},
      {"block-size = [1, 2]\n", "block-size must be a string, a number or true/false"},
      {"[engine]\nthreads = 1\n", "unknown option 'engine'"},
      {"model = \"x\"\nengines == 2\n", "line 2"}};
  for (const auto& [toml, text] : bad) {
    const auto loaded = load(toml);
    ASSERT_FALSE(loaded.has_value()) << toml;
    EXPECT_THAT(loaded.error().text, HasSubstr("options.toml"));
    EXPECT_THAT(loaded.error().text, HasSubstr(text));
  }
}

TEST_F(OptionsFile, AMissingFileIsAnErrorThatNamesIt) {
  const auto loaded = load_options(options, directory_.path() / "none.toml");
  ASSERT_FALSE(loaded.has_value());
  EXPECT_EQ(loaded.error().code, Errc::not_found);
  EXPECT_THAT(loaded.error().text, HasSubstr(directory_.path().string() + "/none.toml"));
}

// -- ranges and combinations

Options sound() {
  Options options;
  options.model = "/models/small";
  return options;
}

TEST(CheckOptions, TheDefaultsAreValidOnceAModelIsNamed) {
  EXPECT_TRUE(check_options(sound()).has_value());
  const auto refused = check_options({});
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().text, HasSubstr("give --model DIRECTORY"));
}

TEST(CheckOptions, TheEdgesAreAllowed) {
  Options options = sound();
  options.engines = 31;
  options.block_size = 1024;
  options.gpu_memory_utilization = 1;
  options.num_gpu_blocks_override = 2;
  options.max_num_seqs = options.max_num_batched_tokens = 1;
  options.watermark = 0.999;
  options.preemption_mode = PreemptionMode::swap;
  options.swap_space = 1;
  options.sharing = Sharing::listed;
  options.domains = parse_domains("a=0;").value();
  options.socket_access = {AllowedUsers::Kind::group, "0"};
  EXPECT_TRUE(check_options(options).has_value());
  options.gpu_memory_utilization = 0;
  EXPECT_TRUE(check_options(options).has_value());
}

struct BadOption {
  std::string field, value, remedy;
};

class CheckOptionsError : public ::testing::TestWithParam<BadOption> {};

TEST_P(CheckOptionsError, NamesFieldValueAndRemedy) {
  const auto& [field, value, remedy] = GetParam();
  Options options = sound();
  auto refused = set(options, field, value);
  if (refused) refused = check_options(options);
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().text, HasSubstr(field));
  EXPECT_THAT(refused.error().text, HasSubstr("'" + value));
  EXPECT_THAT(refused.error().text, HasSubstr(remedy));
}

INSTANTIATE_TEST_SUITE_P(
    All, CheckOptionsError,
    ::testing::Values(BadOption{"engines", "0", "1..31"}, BadOption{"engines", "32", "1..31"},
                      BadOption{"block-size", "0", "1..1024"},
                      BadOption{"block-size", "1025", "16 is usual"},
                      BadOption{"gpu-memory-utilization", "1.5", "in [0, 1]"},
                      BadOption{"gpu-memory-utilization", "-0.5", "in [0, 1]"},
                      BadOption{"gpu-memory-utilization", "nan", "in [0, 1]"},
                      BadOption{"num-gpu-blocks-override", "1", "at least 2"},
                      BadOption{"max-num-seqs", "0", "at least 1"},
                      BadOption{"max-num-batched-tokens", "127", "max-num-seqs (128)"},
                      BadOption{"watermark", "1", "[0, 1)"},
                      BadOption{"watermark", "-0.1", "[0, 1)"},
                      BadOption{"watermark", "nan", "[0, 1)"},
                      BadOption{"kv-cache-dtype", "int4", "fp8_e5m2, int8"},
                      BadOption{"kv-cache-dtype", "double", "auto, float32, bfloat16, float16"},
                      BadOption{"scheduling-policy", "lifo", "fcfs, priority"},
                      BadOption{"preemption-mode", "drop", "recompute, swap, auto"},
                      BadOption{"preemption-mode", "swap", "--swap-space"},
                      BadOption{"preemption-mode", "auto", "--swap-space"},
                      BadOption{"sharing", "some", "user, all, listed"},
                      BadOption{"sharing", "listed", "under domains"},
                      BadOption{"domains", "research", "NAME=USER"},
                      BadOption{"shares", "research", "write DOMAIN="},
                      BadOption{"scrub", "always", "on_domain_change, never"},
                      BadOption{"eviction-policy", "lfu", "lru, second-chance"},
                      BadOption{"prefix-caching-hash-algo", "sha256_cbor", "xxhash, sha256"},
                      BadOption{"kv-cache-metrics-sample", "-0.1", "[1e-06, 1]"},
                      BadOption{"kv-cache-metrics-sample", "1.5", "[1e-06, 1]"},
                      BadOption{"device", "gpu", "auto, cpu, cuda"},
                      BadOption{"gpu-fault", "drop", "drop_unpinned, keep, drop_all"},
                      BadOption{"gpu-memory-sharing", "fd", "auto, vmm, ipc"},
                      BadOption{"socket-access", "staff", "owner, everybody, @GROUP"},
                      BadOption{"socket-access", "@", "owner, everybody, @GROUP"},
                      BadOption{"log-level", "loud", "trace, debug, info, warn, error, off"}));

}  // namespace
}  // namespace kvhive
