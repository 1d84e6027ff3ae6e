#include "config/options.hpp"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <numeric>
#include <sstream>
#include <toml++/toml.h>

#include "base/byte_size.hpp"
#include "config/domain_rules.hpp"

namespace kvhive {
namespace {

constexpr std::size_t kGiB = std::size_t{1} << 30;

const OptionField kFields[] = {
    {"model", &Options::model, "model directory in Hugging Face's format"},
    {"socket", &Options::socket, "the daemon's Unix socket"},
    {"engines", &Options::engines, "engine processes sharing the pool (1..31)"},
    {"threads", &Options::threads, "compute threads per engine; 0 = cores / engines"},
    {"device", &Options::device,
     "where engines compute: cpu, cuda, or auto (cuda if there is any)"},
    {"block-size", &Options::block_size, "tokens per block"},
    {"gpu-memory-utilization", &Options::gpu_memory_utilization,
     "share of the memory for weights, activations and KV together: of a GPU's that is free, or of "
     "the machine's on the CPU; 0 = 0.9 of the one, 0.4 of the other"},
    {"kv-cache-memory-bytes", OptionField::Size{&Options::kv_cache_memory_bytes, 1},
     "bytes of the KV pool, e.g. 512M; skips the profile run"},
    {"num-gpu-blocks-override", &Options::num_gpu_blocks_override,
     "device blocks, whatever the memory says"},
    {"swap-space", OptionField::Size{&Options::swap_space, kGiB},
     "host tier of the pool: takes what the device tier evicts, and sequences preempted by swap; a "
     "bare number is GiB"},
    {"kv-cache-dtype", &Options::kv_cache_dtype,
     "auto (the model's), float32, bfloat16, float16, fp8 (fp8_e4m3), fp8_e5m2, or int8 with a "
     "scale per token and head"},
    {"max-model-len", &Options::max_model_len,
     "most tokens of a request, prompt and output; 0 = the model's"},
    {"max-num-seqs", &Options::max_num_seqs, "sequences running at once per engine"},
    {"max-num-batched-tokens", &Options::max_num_batched_tokens,
     "tokens computed per step and engine"},
    {"enable-prefix-caching", &Options::enable_prefix_caching,
     "reuse the blocks of equal prefixes"},
    {"batch-invariant", &Options::batch_invariant,
     "on a GPU: tokens do not depend on what is computed beside them, as on the CPU; slower "
     "prompts"},
    {"enforce-eager", &Options::enforce_eager,
     "on a GPU: start every kernel by itself, no CUDA graphs"},
    {"scheduling-policy", &Options::scheduling_policy, "fcfs or priority"},
    {"watermark", &Options::watermark, "share of the blocks kept free when admitting, [0, 1)"},
    {"preemption-mode", &Options::preemption_mode, "recompute or swap"},
    {"seed", &Options::seed, "makes requests without a seed repeatable; 0 = each draws one"},
    {"sharing", &Options::sharing,
     "clients that domains does not name: user (those of one user share), all (all of them) or "
     "listed (refused)"},
    {"domains", OptionField::Table{&Options::domains},
     "who shares with whom, e.g. research=alice,1001,@staff;batch=bob"},
    {"channel-bytes-per-domain", OptionField::Size{&Options::channel_bytes_per_domain, 1},
     "bytes that the channels of one domain's clients may have together, e.g. 256M; 0 = no limit "
     "but that of all clients"},
    {"scrub", &Options::scrub,
     "on_domain_change (a block is zeroed before another domain gets it) or never"},
    {"gpu-fault", &Options::gpu_fault,
     "when an engine loses its GPU: drop_unpinned (blocks nobody holds), keep, or drop_all (and "
     "restart the others)"},
    {"gpu-memory-sharing", &Options::gpu_memory_sharing,
     "how engines share a GPU's memory: vmm (descriptors), ipc (legacy CUDA IPC: one more process "
     "keeps the memory, and the daemon ends with it), or auto (vmm if it can be had)"},
    {"socket-access", &Options::socket_access, "who may connect: owner, everybody or @GROUP"},
    {"log-level", &Options::log_level, "trace, debug, info, warn, error or off"},
};

tl::unexpected<Error> bad_value(std::string_view name, const std::string& value,
                                const std::string& remedy) {
  return failure(Errc::bad_argument, std::string(name) + ": '" + value + "' " + remedy);
}

template <class Number>
Expected<void> parse_number(Number& target, std::string_view name, const std::string& text) {
  Number value{};
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (status != std::errc{} || end != text.data() + text.size())
    return bad_value(
        name, text,
        std::is_integral_v<Number> ? "is not a whole number >= 0 in range" : "is not a number");
  target = value;
  return {};
}

Expected<void> parse_bool(bool& target, std::string_view name, const std::string& text) {
  if (text == "true" || text == "1" || text == "on")
    target = true;
  else if (text == "false" || text == "0" || text == "off")
    target = false;
  else
    return bad_value(name, text, "is neither true nor false");
  return {};
}

Expected<void> parse_size(std::size_t& target, std::size_t plain_unit, std::string_view name,
                          const std::string& text) {
  auto bytes = parse_bytes(text);
  if (!bytes) return failure(Errc::bad_argument, std::string(name) + ": " + bytes.error().text);
  const bool is_plain = text.find_first_not_of("0123456789.") == std::string::npos;
  if (is_plain && plain_unit != 1) bytes = parse_bytes(text + "GiB");
  if (!bytes) return failure(Errc::bad_argument, std::string(name) + ": " + bytes.error().text);
  target = *bytes;
  return {};
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substituted = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row.back();
}

/// A TOML value as the text a flag would carry.
Expected<std::string> text_of(std::string_view key, const toml::node& node) {
  if (const auto text = node.value_exact<std::string>()) return *text;
  if (const auto truth = node.value_exact<bool>()) return std::string(*truth ? "true" : "false");
  if (const auto whole = node.value_exact<std::int64_t>()) return std::to_string(*whole);
  if (const auto number = node.value_exact<double>()) {
    char text[400];  // the largest double has 309 digits before the point
    const auto end = std::to_chars(text, std::end(text), *number, std::chars_format::fixed).ptr;
    return std::string(text, end);
  }
  return failure(Errc::bad_format, std::string(key) + " must be a string, a number or true/false");
}

/// {research = ["alice", 1001]} as "research=alice,1001".
Expected<std::string> text_of_table(std::string_view key, const toml::table& table) {
  std::string text;
  for (const auto& [name, node] : table) {
    const std::string place = std::string(key) + "." + std::string(name.str());
    text += (text.empty() ? "" : ";") + std::string(name.str()) + "=";
    const toml::array* items = node.as_array();
    for (std::size_t i = 0; i < (items != nullptr ? items->size() : 1); ++i) {
      auto item = text_of(place, items != nullptr ? *items->get(i) : node);
      if (!item) return item;
      if (item->find_first_of(",;=") != std::string::npos)
        return bad_value(place, *item, "is not one name or number; write a list of them");
      text += (i == 0 ? "" : ",") + *item;
    }
  }
  return text;
}

std::string flag_value(const Options& options, const OptionField& field) {
  return std::visit(
      [&](const auto& target) -> std::string {
        using Target = std::decay_t<decltype(target)>;
        std::ostringstream text;
        text.precision(17);
        if constexpr (std::is_same_v<Target, OptionField::Size>)
          text << options.*target.member << "B";
        else if constexpr (std::is_same_v<Target, OptionField::Table>)
          text << options.*target.member;
        else if constexpr (std::is_same_v<Target, bool Options::*>)
          text << (options.*target ? "true" : "false");
        else
          text << options.*target;
        return text.str();
      },
      field.target);
}

}  // namespace

std::span<const OptionField> option_fields() { return kFields; }

Expected<void> set_option(Options& options, const OptionField& field, const std::string& text) {
  return std::visit(
      [&](const auto& target) -> Expected<void> {
        using Target = std::decay_t<decltype(target)>;
        if constexpr (std::is_same_v<Target, OptionField::Size>)
          return parse_size(options.*target.member, target.plain_unit, field.name, text);
        else if constexpr (std::is_same_v<Target, bool Options::*>)
          return parse_bool(options.*target, field.name, text);
        else if constexpr (std::is_same_v<Target, std::string Options::*>)
          return options.*target = text, Expected<void>{};
        else if constexpr (std::is_same_v<Target, OptionField::Table>)
          return options.*target.member = text, Expected<void>{};
        else
          return parse_number(options.*target, field.name, text);
      },
      field.target);
}

Expected<const OptionField*> find_option(std::string_view name) {
  std::string wanted(name);
  std::replace(wanted.begin(), wanted.end(), '_', '-');
  const OptionField* nearest = &kFields[0];
  for (const OptionField& field : kFields) {
    if (field.name == wanted) return &field;
    if (edit_distance(field.name, wanted) < edit_distance(nearest->name, wanted)) nearest = &field;
  }
  return failure(Errc::bad_format, "unknown option '" + std::string(name) + "'; did you mean '" +
                                       std::string(nearest->name) + "'?");
}

Expected<void> load_options(Options& options, const std::filesystem::path& file) {
  std::error_code ignored;
  if (std::filesystem::status(file, ignored).type() == std::filesystem::file_type::not_found)
    return failure(Errc::not_found,
                   "options file " + file.string() + " does not exist; give --config another path");
  toml::table table;
  try {
    table = toml::parse_file(file.string());
  } catch (const toml::parse_error& error) {
    std::ostringstream text;
    text << file.string() << " line " << error.source().begin.line << ": " << error.description();
    return failure(Errc::bad_format, text.str());
  }
  for (const auto& [key, node] : table) {
    auto field = find_option(key.str());
    if (!field) return failure(field.error().code, file.string() + ": " + field.error().text);
    const bool is_table =
        node.is_table() && std::holds_alternative<OptionField::Table>((*field)->target);
    auto text = is_table ? text_of_table(key.str(), *node.as_table()) : text_of(key.str(), node);
    if (!text) return failure(text.error().code, file.string() + ": " + text.error().text);
    if (auto set = set_option(options, **field, *text); !set)
      return failure(set.error().code, file.string() + ": " + set.error().text);
  }
  return {};
}

Expected<void> check_options(const Options& o) {
  const auto number = [](auto value) { return std::to_string(value); };
  if (o.model.empty())
    return failure(Errc::bad_argument, "model is not set; give --model DIRECTORY");
  if (o.engines < 1 || o.engines > 31)
    return bad_value("engines", number(o.engines), "must be 1..31");
  if (o.block_size < 1 || o.block_size > 1024)
    return bad_value("block-size", number(o.block_size), "must be 1..1024 tokens; 16 is usual");
  if (!(o.gpu_memory_utilization >= 0) || o.gpu_memory_utilization > 1)
    return bad_value("gpu-memory-utilization", number(o.gpu_memory_utilization),
                     "must be above 0 and at most 1, or 0 for the device's usual share");
  if (o.num_gpu_blocks_override == 1)
    return bad_value("num-gpu-blocks-override", "1",
                     "must be at least 2 (one is the null block), or 0 for none");
  if (o.max_num_seqs < 1) return bad_value("max-num-seqs", "0", "must be at least 1");
  if (o.max_num_batched_tokens < o.max_num_seqs)
    return bad_value(
        "max-num-batched-tokens", number(o.max_num_batched_tokens),
        "must be at least max-num-seqs (" + number(o.max_num_seqs) + "), a token for each");
  if (!(o.watermark >= 0) || o.watermark >= 1)
    return bad_value("watermark", number(o.watermark), "must be in [0, 1)");
  const auto one_of = [](std::string_view name, const std::string& value,
                         std::initializer_list<std::string_view> known) -> Expected<void> {
    if (std::find(known.begin(), known.end(), value) != known.end()) return {};
    std::string remedy = "is unknown; use";
    for (const auto choice : known)
      remedy += (choice == *known.begin() ? " " : ", ") + std::string(choice);
    return bad_value(name, value, remedy);
  };
  if (auto known =
          one_of("kv-cache-dtype", o.kv_cache_dtype,
                 {"auto", "float32", "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2", "int8"});
      !known)
    return known;
  if (auto known = one_of("device", o.device, {"auto", "cpu", "cuda"}); !known) return known;
  if (auto known = one_of("scheduling-policy", o.scheduling_policy, {"fcfs", "priority"}); !known)
    return known;
  if (auto known = one_of("preemption-mode", o.preemption_mode, {"recompute", "swap"}); !known)
    return known;
  if (o.preemption_mode == "swap" && o.swap_space == 0)
    return bad_value("preemption-mode", "swap", "needs a host tier; give --swap-space as well");
  if (auto known = one_of("sharing", o.sharing, {"user", "all", "listed"}); !known) return known;
  auto rules = parse_domains(o.domains);
  if (!rules) return forward_error(rules);
  if (rules->empty() && o.sharing == "listed")
    return bad_value("sharing", "listed", "admits nobody; name the clients' users under domains");
  if (auto known = one_of("scrub", o.scrub, {"on_domain_change", "never"}); !known) return known;
  if (auto known = one_of("gpu-fault", o.gpu_fault, {"drop_unpinned", "keep", "drop_all"}); !known)
    return known;
  if (auto known = one_of("gpu-memory-sharing", o.gpu_memory_sharing, {"auto", "vmm", "ipc"});
      !known)
    return known;
  if (o.socket_access.size() < 2 || o.socket_access[0] != '@')
    if (auto known = one_of("socket-access", o.socket_access, {"owner", "everybody", "@GROUP"});
        !known)
      return known;
  return one_of("log-level", o.log_level, {"trace", "debug", "info", "warn", "error", "off"});
}

std::vector<std::string> to_flags(const Options& options) {
  std::vector<std::string> flags;
  for (const OptionField& field : kFields) {
    flags.push_back("--" + std::string(field.name));
    flags.push_back(flag_value(options, field));
  }
  return flags;
}

std::string default_socket() {
  if (const char* chosen = std::getenv("KVHIVE_SOCKET"); chosen != nullptr && *chosen != '\0')
    return chosen;
  if (const char* runtime = std::getenv("XDG_RUNTIME_DIR"); runtime != nullptr && *runtime != '\0')
    return std::string(runtime) + "/kvhive/kvhived.sock";
  return "/run/kvhive/kvhived.sock";
}

}  // namespace kvhive
