#include "config/option_table.hpp"

#include <algorithm>
#include <concepts>
#include <sstream>
#include <type_traits>

#include "base/byte_size.hpp"
#include "base/ids.hpp"
#include "config/domains/rule_text.hpp"

namespace kvhive {
namespace {

constexpr std::size_t kGiB = std::size_t{1} << 30;

// -- from text: one overload for each type that a field of Options has ----------------------------

Expected<void> parse_value(std::string& target, const std::string& text) {
  target = text;
  return {};
}

template <class Number>
requires std::is_arithmetic_v<Number> Expected<void> parse_value(Number& target,
                                                                 const std::string& text) {
  if (parse_number(target, text)) return {};
  return bad_value(
      text, std::is_integral_v<Number> ? "is not a whole number >= 0 in range" : "is not a number");
}

Expected<void> parse_value(bool& target, const std::string& text) {
  if (text == "true" || text == "1" || text == "on")
    target = true;
  else if (text == "false" || text == "0" || text == "off")
    target = false;
  else
    return bad_value(text, "is neither true nor false");
  return {};
}

template <NamedEnum Enum>
Expected<void> parse_value(Enum& target, const std::string& text) {
  const auto value = value_named<Enum>(text);
  if (!value) return bad_value(text, "is unknown; use one of " + joined(names_of(Enum{})));
  target = *value;
  return {};
}

template <class T>
Expected<void> take(T& target, Expected<T> value) {
  if (!value) return forward_error(value);
  target = std::move(*value);
  return {};
}

Expected<void> parse_value(AllowedUsers& target, const std::string& text) {
  return take(target, parse_allowed_users(text));
}

Expected<void> parse_value(CpuBind& target, const std::string& text) {
  return take(target, parse_cpu_bind(text));
}

Expected<void> parse_value(WindowRetention& target, const std::string& text) {
  return take(target, parse_window_retention(text));
}

Expected<void> parse_value(std::vector<DomainRule>& target, const std::string& text) {
  return take(target, parse_domains(text));
}

Expected<void> parse_value(std::vector<ShareRule>& target, const std::string& text) {
  return take(target, parse_shares(text));
}

/// \param plain_unit  bytes that a number without a unit counts
Expected<void> parse_size(std::size_t& target, std::size_t plain_unit, const std::string& text) {
  const bool is_plain = text.find_first_not_of("0123456789.") == std::string::npos;
  auto bytes = parse_bytes(text);
  if (bytes && is_plain && plain_unit == kGiB) bytes = parse_bytes(text + "GiB");
  return take(target, std::move(bytes));
}

// -- to text --------------------------------------------------------------------------------------

std::string format_value(const std::string& value) { return value; }
std::string format_value(bool value) { return value ? "true" : "false"; }
std::string format_value(std::integral auto value) { return std::to_string(value); }
std::string format_value(NamedEnum auto value) { return std::string(to_string(value)); }
std::string format_value(const AllowedUsers& value) { return to_string(value); }
std::string format_value(const CpuBind& value) { return to_string(value); }
std::string format_value(const WindowRetention& value) { return to_string(value); }
std::string format_value(const std::vector<DomainRule>& value) { return to_string(value); }
std::string format_value(const std::vector<ShareRule>& value) { return to_string(value); }

/// The shortest text that is read back as the same number.
std::string format_value(double value) {
  std::ostringstream text;
  for (int digits = 6; digits <= 17; digits = digits == 6 ? 15 : digits + 1) {
    text.str("");
    text.precision(digits);
    text << value;
    if (std::strtod(text.str().c_str(), nullptr) == value) break;
  }
  return text.str();
}

// -- types ----------------------------------------------------------------------------------------

template <auto Member>
using TypeOf = std::remove_reference_t<decltype(std::declval<Options&>().*Member)>;

template <NamedEnum Enum>
constexpr auto kNames = names_of(Enum{});
constexpr std::string_view kAllowedUsers[] = {"owner", "everybody", "@GROUP"};

template <class T>
constexpr ValueKind kind_of() {
  if (std::is_same_v<T, bool>) return ValueKind::truth;
  if (std::is_integral_v<T>) return ValueKind::whole_number;
  if (std::is_floating_point_v<T>) return ValueKind::number;
  if (NamedEnum<T> || std::is_same_v<T, AllowedUsers>) return ValueKind::choice;
  if (std::is_same_v<T, std::vector<DomainRule>> || std::is_same_v<T, std::vector<ShareRule>>)
    return ValueKind::table;
  return ValueKind::text;
}

template <class T>
constexpr std::span<const std::string_view> choices_of() {
  if constexpr (NamedEnum<T>) return kNames<T>;
  if constexpr (std::is_same_v<T, AllowedUsers>) return kAllowedUsers;
  return {};
}

template <auto Member>
double number_of(const Options& options) {
  return static_cast<double>(options.*Member);
}

template <auto Member>
constexpr OptionType make_type(ValueKind kind = kind_of<TypeOf<Member>>()) {
  using T = TypeOf<Member>;
  OptionType type{
      kind, choices_of<T>(),
      [](Options& options, const std::string& text) { return parse_value(options.*Member, text); },
      [](const Options& options) { return format_value(options.*Member); }};
  if constexpr (std::is_arithmetic_v<T> && !std::is_same_v<T, bool>)
    type.number = number_of<Member>;
  return type;
}

template <auto Member>
constexpr OptionType kValue = make_type<Member>();
template <auto Member>
constexpr OptionType kFile = make_type<Member>(ValueKind::file);
template <auto Member>
constexpr OptionType kDirectory = make_type<Member>(ValueKind::directory);
template <auto Member, std::size_t kPlainUnit>
constexpr OptionType kSize = {
    ValueKind::size,
    {},
    [](Options& options, const std::string& text) {
      return parse_size(options.*Member, kPlainUnit, text);
    },
    [](const Options& options) { return std::to_string(options.*Member) + "B"; },
    number_of<Member>};

/// An empty name is no way to say "nobody else": in a script it is a variable that was not set, and
/// the daemon would stay root.
constexpr OptionType kUser = {ValueKind::text,
                              {},
                              [](Options& options, const std::string& text) -> Expected<void> {
                                if (text.empty())
                                  return bad_value(text,
                                                   "is no user; give one, or leave the option out");
                                return parse_value(options.user, text);
                              },
                              [](const Options& options) { return options.user; }};

// -- the table ------------------------------------------------------------------------------------

constexpr OptionField kFields[] = {
    {.name = "model",
     .type = kDirectory<&Options::model>,
     .help =
         "model directory in Hugging Face's format; or several models that share the pool, each "
         "with the name that clients call it by: NAME=DIRECTORY",
     .is_list = true},
    {.name = "model-options",
     .type = kValue<&Options::model_options>,
     .help =
         "of several models, what one has for itself: engines, block-size, max-model-len, "
         "min-blocks (that others do not evict), e.g. a=engines:2,min-blocks:25%;b=block-size:32",
     .unit = "name=option:value",
     .has_rules = true},
    {.name = "lora-modules",
     .type = kValue<&Options::lora_modules>,
     .help = "LoRA adapters of the model that requests may name: NAME=DIRECTORY,NAME=DIRECTORY; of "
             "several models MODEL:NAME=DIRECTORY",
     .unit = "name=directory",
     .is_list = true},
    {.name = "socket", .type = kFile<&Options::socket>, .help = "the daemon's Unix socket"},
    {.name = "engines",
     .type = kValue<&Options::engines>,
     .help = "engine processes of each model; all share the pool",
     .range = {1, kMaxProcesses}},
    {.name = "threads",
     .type = kValue<&Options::threads>,
     .help = "compute threads of each engine",
     .zero = "cores / engines"},
    {.name = "cpu-bind",
     .type = kValue<&Options::cpu_bind>,
     .help =
         "processors that engines run on: auto = of several engines each has cores of its own, as "
         "near each other as there are; none = any; or a list for each engine, e.g. 0-7|8-15. "
         "With several memory nodes pool and weights lie on all that engines have, by turns",
     .unit = "lists"},
    {.name = "device",
     .type = kValue<&Options::device>,
     .help = "where engines compute; auto = on a GPU if there is one, else on the CPU"},
    {.name = "cpu-kernels",
     .type = kValue<&Options::cpu_kernels>,
     .help =
         "instructions that engines compute with on the CPU, the same in all of a pool, because "
         "they decide the last bits; auto = the fastest that CPU and kernel grant "
         "(kvhive doctor)"},
    {.name = "block-size",
     .type = kValue<&Options::block_size>,
     .help = "tokens per block",
     .unit = "tokens",
     .range = {1, 1024, false, "16 is usual"}},
    {.name = "gpu-memory-utilization",
     .type = kValue<&Options::gpu_memory_utilization>,
     .help =
         "share of the memory for weights, activations and KV together: of a GPU's free memory, "
         "or on the CPU of the machine's memory",
     .zero = "0.9 of a GPU's, 0.4 of the machine's",
     .range = {0, 1}},
    {.name = "kv-cache-memory-bytes",
     .type = kSize<&Options::kv_cache_memory_bytes, 1>,
     .help = "bytes of the pool's device tier, e.g. 512M; gpu-memory-utilization is then ignored",
     .zero = "by gpu-memory-utilization"},
    {.name = "num-gpu-blocks-override",
     .type = kValue<&Options::num_gpu_blocks_override>,
     .help = "blocks of the device tier, whatever the memory; one of them is the null block",
     .unit = "blocks",
     .zero = "by memory",
     .range = {.least = 2}},
    {.name = "swap-space",
     .type = kSize<&Options::swap_space, kGiB>,
     .help = "bytes of the pool's host tier, which takes blocks that the device tier evicts and "
             "sequences that are preempted by swap; a number without a unit is in GiB",
     .zero = "no host tier"},
    {.name = "kv-cache-dtype",
     .type = kValue<&Options::kv_cache_dtype>,
     .help =
         "element type of the KV; auto = the model's, fp8 = fp8_e4m3, int8 has a scale for each "
         "token and head"},
    {.name = "max-model-len",
     .type = kValue<&Options::max_model_len>,
     .help = "most tokens of a request, prompt and output together",
     .unit = "tokens",
     .zero = "what model and pool allow"},
    {.name = "max-num-seqs",
     .type = kValue<&Options::max_num_seqs>,
     .help = "sequences that run at once in one engine",
     .unit = "sequences",
     .range = {.least = 1}},
    {.name = "max-num-batched-tokens",
     .type = kValue<&Options::max_num_batched_tokens>,
     .help = "tokens that one engine computes in one step",
     .unit = "tokens",
     .range = {.least = 1}},
    {.name = "long-prefill-token-threshold",
     .type = kValue<&Options::long_prefill_token_threshold>,
     .help = "most tokens of one request in a step while there are others, so that a long prompt "
             "does not hold them up",
     .unit = "tokens",
     .zero = "no limit"},
    {.name = "num-speculative-tokens",
     .type = kValue<&Options::num_speculative_tokens>,
     .help = "tokens guessed ahead of each request, from where its last tokens stood earlier in "
             "its text; a step computes them together and keeps those that it would have sampled, "
             "so that answers stay the same and repetitive ones come sooner",
     .unit = "tokens",
     .zero = "none",
     .range = {.most = kMostSpeculativeTokens}},
    {.name = "prompt-lookup-max",
     .type = kValue<&Options::prompt_lookup_max>,
     .help = "of a request's last tokens, at most so many are looked for earlier in its text",
     .unit = "tokens",
     .range = {.least = 1}},
    {.name = "prompt-lookup-min",
     .type = kValue<&Options::prompt_lookup_min>,
     .help = "and at least so many",
     .unit = "tokens",
     .range = {.least = 1}},
    {.name = "max-queued-tokens",
     .type = kValue<&Options::max_queued_tokens>,
     .help = "most tokens of the requests that wait in one engine; a request that would be more is "
             "refused at once (\"overloaded\"), with a hint when to try again",
     .unit = "tokens",
     .zero = "no limit"},
    {.name = "enable-prefix-caching",
     .type = kValue<&Options::enable_prefix_caching>,
     .help = "reuse the blocks of equal prefixes"},
    {.name = "prefix-cache-retention-interval",
     .type = kValue<&Options::prefix_cache_retention_interval>,
     .help = "of layers with a sliding window, which blocks stay in the cache: dense = all; a "
             "number = those from which the same prompt goes on, or another one that begins as "
             "two before it did, and those at each multiple of so many tokens (0 = at none)",
     .unit = "tokens"},
    {.name = "single-flight",
     .type = kValue<&Options::single_flight>,
     .help =
         "a request waits for blocks of its prompt that another one is computing, on any engine, "
         "instead of computing them too; at most twice as long as computing them takes, as "
         "measured"},
    {.name = "async-scheduling",
     .type = kValue<&Options::async_scheduling>,
     .help =
         "plan the next step while one is computed, as long as steps are short (10 ms), all that "
         "runs goes on and nothing waits; without effect where num-speculative-tokens is not 0"},
    {.name = "batch-invariant",
     .type = kValue<&Options::batch_invariant>,
     .help =
         "on a GPU: a request's tokens do not depend on the requests beside it (on the CPU they "
         "never do); prompts take longer"},
    {.name = "enforce-eager",
     .type = kValue<&Options::enforce_eager>,
     .help = "on a GPU: launch each kernel by itself instead of CUDA graphs"},
    {.name = "scheduling-policy",
     .type = kValue<&Options::scheduling_policy>,
     .help = "which request is admitted first: the one that came first (fcfs), or the one with the "
             "lowest --priority"},
    {.name = "watermark",
     .type = kValue<&Options::watermark>,
     .help = "share of the blocks that is kept free when requests are admitted",
     .range = {0, 1, true}},
    {.name = "preemption-mode",
     .type = kValue<&Options::preemption_mode>,
     .help = "whether a preempted sequence is computed again, or copied to the host tier and back; "
             "auto = what takes less time, as measured"},
    {.name = "seed",
     .type = kValue<&Options::seed>,
     .help = "makes the output of requests without a seed of their own repeatable",
     .zero = "each such request draws a seed"},
    {.name = "sharing",
     .type = kValue<&Options::sharing>,
     .help = "with whom clients share that --domains does not name: user = with the same user's, "
             "all = with all such clients, listed = such clients are refused"},
    {.name = "domains",
     .type = kValue<&Options::domains>,
     .help =
         "which users and @groups share cached blocks, e.g. research=alice,1001,@staff;batch=bob"},
    {.name = "shares",
     .type = kValue<&Options::shares>,
     .help =
         "what domains may have of each engine (weight, max-num-seqs, max-queued-tokens), and of "
         "the pool's blocks (min-blocks, max-blocks: a number, or a percentage of the device "
         "tier), e.g. research=weight:3,min-blocks:25%;*=max-queued-tokens:20000 (* = all domains "
         "that are not named)"},
    {.name = "channel-bytes-per-domain",
     .type = kSize<&Options::channel_bytes_per_domain, 1>,
     .help = "bytes that the channels of one domain's clients may have together, e.g. 256M",
     .zero = "half of what all clients may have (2G)"},
    {.name = "eviction-policy",
     .type = kValue<&Options::eviction_policy>,
     .help = "which idle block loses its content first: lru = the least recently released one, as "
             "vLLM does; second-chance = the same, but a block that was hit since stays once more"},
    {.name = "prefix-caching-hash-algo",
     .type = kValue<&Options::prefix_caching_hash_algo>,
     .help =
         "what blocks are named with. A hit is compared token by token in any case: with xxhash, "
         "which is faster, whoever learns the pool's secret could make others miss, never hit"},
    {.name = "kv-cache-metrics-sample",
     .type = kValue<&Options::kv_cache_metrics_sample>,
     .help = "share of the device tier's blocks to measure, as one in so many: how long each keeps "
             "its content, and how often it is used, e.g. 0.01",
     .zero = "nothing is measured",
     .range = {1e-6, 1}},
    {.name = "scrub",
     .type = kValue<&Options::scrub>,
     .help = "whether a block is zeroed before another domain gets it"},
    {.name = "gpu-fault",
     .type = kValue<&Options::gpu_fault>,
     .help =
         "when an engine loses its GPU context, drop the blocks that no living engine holds "
         "(drop_unpinned), none (keep), or all of them and restart the other engines (drop_all)"},
    {.name = "gpu-memory-sharing",
     .type = kValue<&Options::gpu_memory_sharing>,
     .help =
         "how engines share a GPU's memory: by descriptors (vmm), or by legacy CUDA IPC (ipc; one "
         "more process keeps the memory, and the daemon ends if it does); auto = vmm if the "
         "driver can do it"},
    {.name = "socket-access",
     .type = kValue<&Options::socket_access>,
     .help = "which users may connect: the daemon's own, all, or the members of a group"},
    {.name = "user",
     .type = kUser,
     .help = "user (name or number) that the daemon runs as, if root starts it; without it the "
             "daemon stays root, without root's capabilities",
     .unit = "user"},
    {.name = "system-call-filter",
     .type = kValue<&Options::system_call_filter>,
     .help = "let the daemon's processes make only the system calls that they need: auto = where "
             "the kernel can do it, and not on a GPU; on = refuse to start elsewhere"},
    {.name = "lock-metadata",
     .type = kValue<&Options::lock_metadata>,
     .help = "keep the pool's metadata and token ids out of swap (mlock); needs a limit of locked "
             "memory (ulimit -l) of that size"},
    {.name = "core-dumps",
     .type = kValue<&Options::core_dumps>,
     .help = "let engines write core dumps and be debugged by their own user; a dump contains "
             "prompts of all users, but not the pool"},
    {.name = "log-level",
     .type = kValue<&Options::log_level>,
     .help = "the least important messages that are logged"},
    {.name = "log-file",
     .type = kFile<&Options::log_file>,
     .help = "file that the log is appended to, reopened on SIGHUP; without it the log goes to "
             "standard error"},
};

}  // namespace

std::span<const OptionField> option_fields() { return kFields; }

bool may_change(std::string_view name) {
  constexpr std::string_view kThose[] = {
      "domains", "sharing", "max-queued-tokens", "shares", "channel-bytes-per-domain", "log-level"};
  return std::find(std::begin(kThose), std::end(kThose), name) != std::end(kThose);
}

Expected<const OptionField*> find_option(std::string_view name) {
  std::string wanted(name);
  std::replace(wanted.begin(), wanted.end(), '_', '-');
  std::vector<std::string_view> names;
  for (const OptionField& field : kFields) {
    if (field.name == wanted) return &field;
    names.push_back(field.name);
  }
  const std::string_view nearest = nearest_name(wanted, names);
  return failure(Errc::bad_format,
                 "unknown option '" + std::string(name) + "'; " +
                     (nearest.empty() ? "kvhived --help lists all"
                                      : "did you mean '" + std::string(nearest) + "'?"));
}

Expected<void> set_option(Options& options, const OptionField& field, const std::string& text) {
  auto parsed = field.type.parse(options, text);
  if (parsed) return {};
  return failure(parsed.error().code, std::string(field.name) + ": " + parsed.error().text);
}

std::string range_text(const OptionField& field) {
  const OptionRange& range = field.range;
  const bool has_most = range.most != std::numeric_limits<double>::infinity();
  if (range.least == 0 && !has_most) return {};
  std::string text = "at least " + format_value(range.least);
  if (has_most)
    text = field.type.kind == ValueKind::number
               ? "in [" + format_value(range.least) + ", " + format_value(range.most) +
                     (range.is_most_excluded ? ")" : "]")
               : format_value(range.least) + ".." + format_value(range.most);
  if (!field.unit.empty() && (has_most || range.least > 1)) text += " " + std::string(field.unit);
  if (!range.advice.empty()) text += "; " + std::string(range.advice);
  return text;
}

}  // namespace kvhive
