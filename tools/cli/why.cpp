#include <bit>
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "models/text/tokenizer_parser.hpp"
#include "pool/care/miss_report.hpp"
#include "tools/cli/inspector.hpp"
#include "tools/cli/pool_commands.hpp"
#include "tools/cli/prompt.hpp"
#include "tools/cli/table.hpp"

namespace kvhive {
namespace {

using Json = nlohmann::json;

struct WhyFlags {
  std::string domain, cache_salt, adapter, model;
  CommonFlags common;
  PromptFlags prompt;
};

/// Puts a report into words.
class Account {
 public:
  Account(const PoolMemory& memory, ModelId model, Inspector::Domains domains, MissReport report,
          std::size_t tokens)
      : memory_(memory),
        groups_(memory.geometry()[model].groups),
        domains_(std::move(domains)),
        report_(std::move(report)),
        tokens_(tokens),
        block_tokens_(memory.geometry()[model].tokens_per_block),
        now_ms_(std::chrono::duration_cast<std::chrono::milliseconds>(
                    std::chrono::system_clock::now().time_since_epoch())
                    .count()) {}

  std::string text() const {
    const bool has_groups = groups_.count > 1;
    Table table(has_groups ? std::vector<std::string>{"group", "blocks", "tokens", "verdict"}
                           : std::vector<std::string>{"blocks", "tokens", "verdict"});
    const auto add = [&](const std::string& group, std::vector<std::string> cells) {
      if (has_groups) cells.insert(cells.begin(), group);
      table.add(cells);
    };
    for (std::size_t first = 0; first < report_.blocks.size();) {
      std::size_t end = first + 1;
      while (end < report_.blocks.size() && is_same(first, end)) ++end;
      const std::size_t begin = at(first).index, behind = begin + end - first;
      add(std::to_string(at(first).group.value),
          {range(begin, behind), range(begin * block_tokens_, behind * block_tokens_),
           status_text(first, end)});
      first = end;
    }
    if (const std::size_t rest = tokens_ % block_tokens_; rest != 0)
      add("-", {"-", range(tokens_ - rest, tokens_),
                "not a full block, and only full blocks are cached"});
    return table.text() + "\n" + reason() + "\n";
  }

  Json json() const {
    Json json = {{"tokens", tokens_},
                 {"block_size", block_tokens_},
                 {"cached_blocks", report_.computed_from},
                 {"computed_from_block", report_.computed_from},
                 {"computed_from_token", report_.computed_from * block_tokens_},
                 {"journal_is_complete", !report_.has_forgotten},
                 {"reason", reason()}};
    json["blocks"] = Json::array();
    for (std::size_t i = 0; i < report_.blocks.size(); ++i) json["blocks"].push_back(to_json(i));
    return json;
  }

 private:
  const BlockStatus& at(std::size_t i) const { return report_.blocks[i]; }

  static std::string range(std::size_t first, std::size_t end) {
    return end - first == 1 ? std::to_string(first)
                            : std::to_string(first) + "-" + std::to_string(end - 1);
  }

  /// Whether one row can describe both blocks: same status, place and process; times may differ.
  bool is_same(std::size_t a, std::size_t b) const {
    const auto tiers = [this](std::size_t i) {
      return (at(i).blocks[0] != kNullBlock ? 1 : 0) + (at(i).blocks[1] != kNullBlock ? 2 : 0);
    };
    return at(a).group == at(b).group && at(a).status == at(b).status && tiers(a) == tiers(b) &&
           at(a).holders == at(b).holders && at(a).slot == at(b).slot &&
           at(a).domain == at(b).domain && at(a).was_demoted == at(b).was_demoted &&
           engine(at(a)) == engine(at(b));
  }

  std::string status_text(std::size_t first, std::size_t end) const {
    const BlockStatus& v = at(first);
    switch (v.status) {
      case CacheStatus::present:
        return "present " + where(first, end) + ", " + held(v) +
               (v.was_demoted
                    ? "; moved to the host tier " + ages(first, end) + " ago by " + engine(v)
                    : "");
      case CacheStatus::unhinted:
        return "present " + where(first, end) +
               ", but the index has lost it; kvhive pool fsck --repair puts it back";
      case CacheStatus::computing: return "being computed by " + engines(v.holders);
      case CacheStatus::forgotten:
        return "present " + where(first, end) + ", but forgotten by kvhive pool reset";
      case CacheStatus::orphaned:
        return "present " + where(first, end) +
               ", but cut off: the block before it was evicted, and has another name since";
      case CacheStatus::collision:
        return "refused " + where(first, end) + ": the hash is the same, the tokens are not";
      case CacheStatus::evicted: return "evicted " + ages(first, end) + " ago by " + engine(v);
      case CacheStatus::retired: return "retired " + ages(first, end) + " ago: it was damaged";
      case CacheStatus::dropped: return "dropped " + ages(first, end) + " ago: its device was lost";
      case CacheStatus::other_domain:
        return "present in domain " + domains_.name(v.domain) + " only, which does not share";
      case CacheStatus::other_salt:
        return "present under another cache salt or adapter only, or under none, which does not "
               "share";
      case CacheStatus::never_seen:
        return (report_.has_forgotten ? "never seen, or evicted longer ago than is remembered"
                                      : "never seen") +
               unkept(v);
    }
    return "unknown";
  }

  /// One sentence on why generation computes from where it does.
  std::string reason() const {
    const std::size_t from = report_.computed_from;
    const std::string start = "Generation computes from block " + std::to_string(from) +
                              " (token " + std::to_string(from * block_tokens_) + ") on, because ";
    if (report_.matchable == 0)
      return start + "a prompt of " + std::to_string(tokens_) + " tokens has no full block of " +
             std::to_string(block_tokens_) + " before its last token.";
    if (!report_.decisive)
      return start +
             (groups_.is_one_full() ? "everything before is cached"
                                    : "all that is read of what is before is cached") +
             " and the last token is always computed.";
    const std::size_t place = *report_.decisive;
    const BlockStatus& v = at(place);
    const std::string block = "block " + std::to_string(v.index) +
                              (groups_.count > 1 ? " of group " + std::to_string(v.group.value) +
                                                       " (" + to_string(groups_[v.group]) + ")"
                                                 : "");
    switch (v.status) {
      case CacheStatus::present:
        return start + block + " is on the device only, behind blocks that are on the host only.";
      case CacheStatus::unhinted: return start + "the index has lost " + block + ".";
      case CacheStatus::computing:
        return start + block + " is still being computed by " + engines(v.holders) + ".";
      case CacheStatus::forgotten:
        return start + block + " was forgotten: the prefix cache was reset (kvhive pool reset).";
      case CacheStatus::orphaned:
        return start + block + " belongs to an earlier life of the block before it.";
      case CacheStatus::collision:
        return start + "the only block with the hash of " + block + " holds other tokens.";
      case CacheStatus::evicted:
        return start + block + " was evicted " + ages(place, place + 1) + " ago by " + engine(v) +
               ".";
      case CacheStatus::retired: return start + block + " was found damaged and retired.";
      case CacheStatus::dropped:
        return start + block + " was dropped: an engine had lost the device it was on.";
      case CacheStatus::other_domain:
        return start + block + " is cached for domain " + domains_.name(v.domain) + " only.";
      case CacheStatus::other_salt:
        return start + block +
               " is cached under another cache salt or adapter only, or under none.";
      case CacheStatus::never_seen:
        return start + block + " was never computed" +
               (report_.has_forgotten ? ", or evicted longer ago than is remembered" : " here") +
               unkept(at(place)) + ".";
    }
    return start;
  }

  /// A window's blocks may have been computed and not cached.
  std::string unkept(const BlockStatus& block) const {
    return groups_[block.group].kind == CacheKind::sliding_window
               ? ", or not kept (prefix-cache-retention-interval)"
               : "";
  }

  /// "12-15", or "12, 40, 17", of many "12, 40, ... 17: 9 blocks": the pool's own block numbers.
  std::string numbers(std::size_t first, std::size_t end, Tier tier) const {
    const auto id = [&](std::size_t i) { return at(i).blocks[std::size_t(tier)].value; };
    bool is_run = true;
    for (std::size_t i = first; i < end; ++i) is_run &= id(i) == id(first) + (i - first);
    if (is_run) return range(id(first), id(end - 1) + 1);
    constexpr std::size_t kMostListed = 8;
    const bool is_short = end - first <= kMostListed;
    std::string text;
    for (std::size_t i = first; i < end; ++i)
      if (is_short || i < first + kMostListed - 2 || i == end - 1)
        text += (text.empty() ? "" : ", ") + std::to_string(id(i));
      else if (i == end - 2)
        text += ", ...";
    return is_short ? text : text + ": " + std::to_string(end - first) + " blocks";
  }

  /// "on the device (12-15) and on the host (80)"
  std::string where(std::size_t first, std::size_t end) const {
    std::string text;
    for (const Tier tier : {Tier::device, Tier::host}) {
      if (at(first).blocks[std::size_t(tier)] == kNullBlock) continue;
      text += (text.empty() ? "on the " : " and on the ") + std::string(to_string(tier)) + " (" +
              numbers(first, end, tier) + ")";
    }
    return text;
  }

  std::string held(const BlockStatus& v) const {
    return v.holders == 0 ? "idle" : "held by " + engines(v.holders);
  }

  std::string engines(std::uint32_t holders) const {
    std::string text;
    for (; holders != 0; holders &= holders - 1)
      text += (text.empty() ? "" : " and ") + engine_in(std::uint32_t(std::countr_zero(holders)));
    return text;
  }

  std::string engine_in(std::uint32_t slot) const {
    return slot < kMaxProcesses
               ? "engine " + std::to_string(memory_.control().processes[slot].index.load())
               : "the steward";
  }

  /// The engine that evicted or moved the block. The slot may have another process since.
  std::string engine(const BlockStatus& v) const {
    const bool is_known =
        (v.status == CacheStatus::evicted || v.was_demoted) && v.slot < kMaxProcesses;
    if (!is_known) return engine_in(v.slot);
    const auto started = memory_.control().processes[v.slot].started.load();
    return v.unix_ms / 1000 < started ? "an engine that is gone" : engine_in(v.slot);
  }

  static std::string age(std::int64_t ms) {
    char text[32];
    const auto seconds = static_cast<double>(std::max<std::int64_t>(ms, 0)) / 1e3;
    if (seconds < 120)
      std::snprintf(text, sizeof text, "%.1f s", seconds);
    else if (seconds < 7200)
      std::snprintf(text, sizeof text, "%.0f min", seconds / 60);
    else
      std::snprintf(text, sizeof text, "%.1f h", seconds / 3600);
    return text;
  }

  std::string ages(std::size_t first, std::size_t end) const {
    std::int64_t least = at(first).unix_ms, most = least;
    for (std::size_t i = first; i < end; ++i) {
      least = std::min(least, at(i).unix_ms);
      most = std::max(most, at(i).unix_ms);
    }
    const std::string youngest = age(now_ms_ - most), oldest = age(now_ms_ - least);
    return youngest == oldest ? oldest : youngest + " to " + oldest;
  }

  Json to_json(std::size_t i) const {
    const BlockStatus& v = at(i);
    Json json = {{"block", v.index}, {"group", v.group.value}, {"verdict", to_string(v.status)}};
    for (const Tier tier : {Tier::device, Tier::host})
      if (const BlockId id = v.blocks[std::size_t(tier)]; id != kNullBlock)
        json[std::string(to_string(tier)) + "_block"] = id.value;
    if (v.blocks[0] != kNullBlock || v.blocks[1] != kNullBlock) {
      json["holders"] = Json::array();
      for (std::uint32_t mask = v.holders; mask != 0; mask &= mask - 1)
        json["holders"].push_back(
            memory_.control().processes[std::uint32_t(std::countr_zero(mask))].index.load());
    }
    if (v.was_demoted) json["moved_to_host_tier"] = true;
    if (v.status == CacheStatus::evicted || v.status == CacheStatus::retired ||
        v.status == CacheStatus::dropped || v.was_demoted) {
      json["seconds_ago"] = static_cast<double>(now_ms_ - v.unix_ms) / 1e3;
      json["by"] = engine(v);
    }
    if (v.status == CacheStatus::other_domain) json["domain"] = domains_.name(v.domain);
    return json;
  }

  const PoolMemory& memory_;
  CacheGroups groups_;
  Inspector::Domains domains_;
  MissReport report_;
  std::size_t tokens_, block_tokens_;
  std::int64_t now_ms_;
};

/// The number of the model that was asked for, or of the first.
Expected<ModelId> choose_model(const Json& models, const std::string& wanted) {
  std::string known;
  for (std::size_t m = 0; m < models.size(); ++m) {
    const std::string name = models[m]["name"];
    if (wanted.empty() || name == wanted) return ModelId{static_cast<std::uint8_t>(m)};
    known += (known.empty() ? "" : ", ") + name;
  }
  return failure(Errc::not_found,
                 "model: '" + wanted + "' is not served here; there are: " + known);
}

/// Tokenises as an engine does, with its model.
Expected<std::vector<TokenId>> tokens_of(const GivenPrompt& prompt, const Json& model) {
  if (prompt.text.empty()) return prompt.tokens;
  auto tokenizer = load_tokenizer(model["directory"].get<std::string>());
  if (!tokenizer) return forward_error(tokenizer);
  return tokenizer->encode(prompt.text, AddSpecial::yes);
}

/// The domain that was asked for, or the domain of this user's clients.
Expected<DomainId> choose_domain(const Inspector::Domains& domains, const std::string& wanted) {
  if (!wanted.empty()) return domains.find(wanted);
  if (domains.ours) return *domains.ours;
  return failure(Errc::bad_argument,
                 "domain: your own clients are in no domain; name one with --domain");
}

/// A name that no request can have would be answered as if nothing were cached under it.
Expected<void> check_adapter(const Json& models, ModelId model, const std::string& name) {
  if (name.empty()) return {};
  std::string known;
  for (const auto& one : models[model.value]["adapters"]) {
    if (one == name) return {};
    known += (known.empty() ? "" : ", ") + one.get<std::string>();
  }
  for (const Json& other : models)
    for (const auto& one : other["adapters"])
      if (one == name)
        return failure(Errc::not_found, "adapter: '" + name + "' is an adapter of model '" +
                                            other["name"].get<std::string>() +
                                            "'; give --model its name");
  if (models.size() > 1)
    return failure(Errc::not_found,
                   "adapter: model '" + models[model.value]["name"].get<std::string>() +
                       "' has no '" + name + "'; " +
                       (known.empty() ? "--lora-modules names none for it" : "it has " + known));
  return failure(Errc::not_found,
                 "adapter: the daemon has no '" + name + "'; " +
                     (known.empty() ? "it was started without --lora-modules" : "it has " + known));
}

Expected<void> why(const WhyFlags& flags) {
  auto prompt = flags.prompt.read();
  if (!prompt) return forward_error(prompt);
  // Tokens are compared, which takes the privilege to read them. The keeper grants it only to the
  // daemon's own user.
  auto inspector =
      Inspector::attach(flags.common.socket_path(), Privilege::tokens_too, WithoutKeeper::fail);
  if (!inspector) return forward_error(inspector);
  const auto status = inspector->status();
  if (!status) return forward_error(status);
  const Json& models = (*status)["models"];
  auto model = choose_model(models, flags.model);
  if (!model) return forward_error(model);
  auto tokens = tokens_of(*prompt, models[model->value]);
  if (!tokens) return forward_error(tokens);
  if (auto known = check_adapter(models, *model, flags.adapter); !known) return known;
  const PoolMemory& memory = inspector->memory();
  auto domains = inspector->domains();
  if (!domains) return forward_error(domains);
  auto domain = choose_domain(*domains, flags.domain);
  if (!domain) return forward_error(domain);
  const Account account(
      memory, *model, *domains,
      explain_miss(memory, *domain, *tokens, flags.cache_salt, flags.adapter, *model),
      tokens->size());
  if (flags.common.output() == Format::json)
    std::printf("%s\n", account.json().dump(2).c_str());
  else
    std::printf("%s", account.text().c_str());
  return {};
}

}  // namespace

void add_pool_why(CLI::App& pool, int& exit_code) {
  auto flags = std::make_shared<WhyFlags>();
  CLI::App* command = pool.add_subcommand(
      "why", "why a prompt would have to be computed: what of it is cached, evicted or unknown");
  flags->common.add_to(*command);
  flags->prompt.add_to(*command, "prompt,--prompt");
  command->add_option("--domain", flags->domain,
                      "asked for clients of this domain (default: your own clients')");
  command->add_option("--model", flags->model,
                      "asked for a request to this model (default: the daemon's first)");
  command->add_option("--adapter", flags->adapter,
                      "asked for a request with this adapter (default: the model alone)");
  command->add_option("--cache-salt", flags->cache_salt,
                      "asked for a request with this cache salt (default: one without)");
  command->callback([flags, &exit_code] {
    if (auto done = why(*flags); !done) exit_code = fail(done.error());
  });
}

}  // namespace kvhive
