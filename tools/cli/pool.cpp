// kvhive pool stat | blocks | procs | fsck (and why, in why.cpp): looking into the pool of a
// running daemon, read-only.

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdio>
#include <map>
#include <memory>
#include <utility>

#include "base/byte_size.hpp"
#include "pool/care/fsck.hpp"
#include "pool/care/pool_report.hpp"
#include "tools/cli/command.hpp"
#include "tools/cli/inspector.hpp"
#include "tools/cli/table.hpp"
#include "tools/cli/why.hpp"
#include "tools/program/slot_owners.hpp"

namespace kvhive {
namespace {

using Json = nlohmann::json;

std::string number(std::uint64_t value) { return with_commas(value); }

void print(const Json& json) { std::printf("%s\n", json.dump(2).c_str()); }

// -- stat -----------------------------------------------------------------------------------------

Json to_json(const TierReport& tier) {
  return {{"blocks", tier.blocks},  {"free", tier.free},     {"filling", tier.filling},
          {"held", tier.held},      {"shared", tier.shared}, {"idle", tier.idle},
          {"retired", tier.retired}};
}

struct Totals {
  std::uint64_t queried = 0, hit = 0, evicted = 0, published = 0, demoted = 0, promoted = 0,
                prompt = 0, cached = 0, generated = 0;
};

Totals totals_of(const PoolReport& report) {
  Totals totals;
  for (const ProcessReport& p : report.processes) {
    totals.queried += p.queried_blocks;
    totals.hit += p.hit_blocks;
    totals.evicted += p.evicted_blocks;
    totals.published += p.published_blocks;
    totals.demoted += p.demoted_blocks;
    totals.promoted += p.promoted_blocks;
    totals.prompt += p.prompt_tokens;
    totals.cached += p.cached_tokens;
    totals.generated += p.generated_tokens;
  }
  return totals;
}

/// Blocks of both tiers with content of one domain, or being filled for it.
struct DomainTotals {
  std::uint64_t held = 0, idle = 0;
};

std::map<std::string, DomainTotals> by_domain(const PoolMemory& memory,
                                              const Inspector::Domains& domains) {
  std::map<std::string, DomainTotals> totals;
  for (const BlockReport& b : report_blocks(memory))
    if (b.word.state() == BlockState::ready || b.word.state() == BlockState::filling)
      ++(b.word.is_idle() ? totals[domains.name(b.domain)].idle
                          : totals[domains.name(b.domain)].held);
  return totals;
}

Expected<void> stat(const CommonFlags& flags) {
  auto inspector = Inspector::attach(flags.socket_path(), Privilege::metadata_only);
  if (!inspector) return forward_error(inspector);
  auto names = inspector->domains();
  if (!names) return forward_error(names);
  const auto domains = by_domain(inspector->memory(), *names);
  const PoolReport report = report_pool(inspector->memory());
  const Totals totals = totals_of(report);
  const std::size_t block_bytes = report.geometry.kv.block_bytes();
  if (flags.output() == Format::json) {
    Json of_domains = Json::object();
    for (const auto& [name, blocks] : domains)
      of_domains[name] = {{"held", blocks.held}, {"idle", blocks.idle}};
    print({{"model", inspector->model()},
           {"epoch", report.epoch},
           {"block_size", report.geometry.tokens_per_block},
           {"block_bytes", block_bytes},
           {"page_layout", to_string(report.geometry.kv.pages)},
           {"tiers", {{"device", to_json(report.tiers[0])}, {"host", to_json(report.tiers[1])}}},
           {"domains", of_domains},
           {"prompt_tokens", totals.prompt},
           {"cached_tokens", totals.cached},
           {"generated_tokens", totals.generated},
           {"evicted_blocks", totals.evicted},
           {"published_blocks", totals.published},
           {"demoted_blocks", totals.demoted},
           {"promoted_blocks", totals.promoted}});
    return {};
  }
  std::printf("pool %.8s of %s: blocks of %u tokens, %s each (%s)\n\n", report.epoch.c_str(),
              inspector->model().c_str(), report.geometry.tokens_per_block,
              format_bytes(block_bytes).c_str(),
              std::string(to_string(report.geometry.kv.pages)).c_str());
  Table table({"tier", "blocks", "free", "filling", "held", "shared", "idle", "size", "in use"});
  for (const Tier tier : {Tier::device, Tier::host}) {
    const TierReport& t = report.tiers[std::size_t(tier)];
    if (t.blocks == 0) continue;
    table.add({std::string(to_string(tier)), number(t.blocks), number(t.free), number(t.filling),
               number(t.held), number(t.shared), number(t.idle),
               format_bytes(t.blocks * block_bytes), percent(t.filling + t.held, t.blocks)});
  }
  std::printf("%s\n", table.text().c_str());
  if (names->names.size() > 1) {
    Table shares({"domain", "held", "idle"});
    for (const auto& [name, blocks] : domains)
      shares.add({name, number(blocks.held), number(blocks.idle)});
    std::printf("%s\n", shares.text().c_str());
  }
  std::printf(
      "prompt tokens %s, of them cached %s (%s); generated %s; blocks published %s, evicted %s\n",
      number(totals.prompt).c_str(), number(totals.cached).c_str(),
      percent(totals.cached, totals.prompt).c_str(), number(totals.generated).c_str(),
      number(totals.published).c_str(), number(totals.evicted).c_str());
  if (report.geometry.host_blocks != 0)
    std::printf("blocks moved to the host tier instead of being lost %s, brought back from it %s\n",
                number(totals.demoted).c_str(), number(totals.promoted).c_str());
  return {};
}

// -- procs ----------------------------------------------------------------------------------------

Json to_json(const ProcessReport& p) {
  return {{"slot", p.slot},
          {"pid", p.pid},
          {"engine", p.index},
          {"started", p.started},
          {"held_device_blocks", p.held_blocks[0]},
          {"held_host_blocks", p.held_blocks[1]},
          {"running", p.running},
          {"waiting", p.waiting},
          {"prompt_tokens", p.prompt_tokens},
          {"cached_tokens", p.cached_tokens},
          {"generated_tokens", p.generated_tokens},
          {"queried_blocks", p.queried_blocks},
          {"hit_blocks", p.hit_blocks},
          {"allocated_blocks", p.allocated_blocks},
          {"evicted_blocks", p.evicted_blocks},
          {"published_blocks", p.published_blocks},
          {"demoted_blocks", p.demoted_blocks},
          {"promoted_blocks", p.promoted_blocks},
          {"preemptions_recompute", p.preemptions_recompute},
          {"preemptions_swap", p.preemptions_swap}};
}

std::string age(std::int64_t started) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now).count() - started;
  return std::to_string(std::max<std::int64_t>(seconds, 0)) + " s";
}

Expected<void> procs(const CommonFlags& flags) {
  auto inspector = Inspector::attach(flags.socket_path(), Privilege::metadata_only);
  if (!inspector) return forward_error(inspector);
  auto status = inspector->status();
  if (!status) return forward_error(status);
  const PoolReport report = report_pool(inspector->memory());
  if (flags.output() == Format::json) {
    (*status)["processes"] = Json::array();
    for (const ProcessReport& process : report.processes)
      (*status)["processes"].push_back(to_json(process));
    print(*status);
    return {};
  }
  Table table({"process", "pid", "slot", "up", "running", "waiting", "held", "prompt", "cached",
               "generated", "preempted"});
  table.add({"keeper", std::to_string((*status)["keeper"]["pid"].get<int>()), "-", "-", "-", "-",
             "-", "-", "-", "-", "-"});
  table.add({"steward", std::to_string((*status)["steward"]["pid"].get<int>()), "-", "-", "-", "-",
             "-", "-", "-", "-", "-"});
  if (const auto memory = status->find("gpu_memory"); memory != status->end())
    table.add({"GPU memory", std::to_string((*memory)["pid"].get<int>()), "-", "-", "-", "-", "-",
               "-", "-", "-", "-"});
  for (const ProcessReport& p : report.processes)
    table.add({"engine " + std::to_string(p.index), std::to_string(p.pid), std::to_string(p.slot),
               age(p.started), number(p.running), number(p.waiting), number(p.held_blocks[0]),
               number(p.prompt_tokens), number(p.cached_tokens), number(p.generated_tokens),
               number(p.preemptions_recompute + p.preemptions_swap)});
  for (const Json& client : (*status)["clients"]) {
    const std::string engine = client["engine"].is_null()
                                   ? "none yet"
                                   : "engine " + std::to_string(client["engine"].get<int>());
    table.add({"client of " + engine, std::to_string(client["pid"].get<int>()), "-", "-", "-", "-",
               "-", "-", "-", "-", "-"});
  }
  std::printf("%s", table.text().c_str());
  return {};
}

// -- blocks ---------------------------------------------------------------------------------------

std::string holders_of(std::uint32_t mask) {
  std::string text;
  for (; mask != 0; mask &= mask - 1)
    text += (text.empty() ? "" : ",") + std::to_string(std::countr_zero(mask));
  return text.empty() ? "-" : text;
}

std::string state_of(BlockWord word) {
  return word.is_idle() ? "idle" : std::string(to_string(word.state()));
}

Expected<void> blocks(const CommonFlags& flags, const std::string& state, std::size_t limit) {
  auto inspector = Inspector::attach(flags.socket_path(), Privilege::metadata_only);
  if (!inspector) return forward_error(inspector);
  auto domains = inspector->domains();
  if (!domains) return forward_error(domains);
  Table table({"block", "tier", "state", "generation", "slots", "domain", "depth", "uid", "parent",
               "stamp"});
  Json json = Json::array();
  std::size_t shown = 0, matching = 0;
  for (const BlockReport& b : report_blocks(inspector->memory())) {
    const std::string is = state_of(b.word);
    if (state.empty() ? b.word.state() == BlockState::free : is != state) continue;
    if (++matching > limit) continue;
    ++shown;
    const bool has_content = b.word.state() == BlockState::ready;
    const bool is_first = has_content && b.parent_uid >= kRootUid;
    if (flags.output() == Format::json) {
      json.push_back({{"block", b.id},
                      {"tier", to_string(b.tier)},
                      {"state", is},
                      {"generation", b.word.generation()},
                      {"holders", b.word.holders()},
                      {"depth", b.depth},
                      {"uid", b.uid},
                      {"parent_uid", b.parent_uid},
                      {"domain", domains->name(b.domain)},
                      {"stamp", b.stamp}});
    } else {
      table.add({std::to_string(b.id), std::string(to_string(b.tier)), is,
                 std::to_string(b.word.generation()), holders_of(b.word.holders()),
                 b.word.state() == BlockState::free ? "-" : domains->name(b.domain),
                 has_content ? std::to_string(b.depth) : "-",
                 has_content ? std::to_string(b.uid) : "-",
                 is_first      ? "root"
                 : has_content ? std::to_string(b.parent_uid)
                               : "-",
                 b.stamp != 0 ? std::to_string(b.stamp) : "-"});
    }
  }
  if (flags.output() == Format::json)
    print(json);
  else
    std::printf("%s%s of %s blocks shown%s\n", table.text().c_str(), number(shown).c_str(),
                number(matching).c_str(), shown < matching ? " (--limit for more)" : "");
  return {};
}

// -- fsck -----------------------------------------------------------------------------------------

struct FsckFlags {
  bool is_privileged = false, repairs = false, is_quiescent = false;
};

/// Looks with what the keeper knows of the slots. What is found is looked at once more with fresher
/// knowledge: an engine that came or went meanwhile is no damage.
Expected<FsckReport> look(const Inspector& inspector, Moment moment) {
  FsckReport report;
  for (int i = 0; i < 2; ++i) {
    auto status = inspector.status();
    if (!status) return forward_error(status);
    const SlotOwners owners = slot_owners_of((*status)["slots"]);
    const FsckReport now = fsck(inspector.memory(), moment, &owners);
    const bool is_first = i == 0;
    const std::vector<std::string> before = std::exchange(report, now).violations;
    if (!is_first) {
      std::erase_if(report.violations, [&](const std::string& violation) {
        return std::find(before.begin(), before.end(), violation) == before.end();
      });
      if (report.violations.empty()) report.violations_in_all = 0;
    }
    if (report.is_clean()) break;
  }
  return report;
}

Json to_json(const FsckReport& report) {
  return {{"clean", report.is_clean()},
          {"violations", report.violations},
          {"violations_in_all", report.violations_in_all},
          {"blocks", report.blocks_checked},
          {"free", report.free},
          {"filling", report.filling},
          {"held", report.held},
          {"idle", report.idle},
          {"retired", report.retired},
          {"ready", report.ready},
          {"orphans", report.orphans},
          {"unhinted", report.unhinted},
          {"stale_hints", report.stale_hints},
          {"unlisted", report.unlisted},
          {"token_bytes_checked", report.bytes_checked}};
}

void print_report(const FsckReport& report, bool repairs) {
  for (const std::string& violation : report.violations) std::printf("%s\n", violation.c_str());
  if (report.violations_in_all > report.violations.size())
    std::printf("... %s in all\n", number(report.violations_in_all).c_str());
  std::printf(
      "%s: %s blocks checked, %s published (%s orphans, %s without a hint), %s of tokens "
      "compared with their names\n",
      report.is_clean() ? "clean" : "NOT CLEAN", number(report.blocks_checked).c_str(),
      number(report.ready).c_str(), number(report.orphans).c_str(), number(report.unhinted).c_str(),
      format_bytes(report.bytes_checked).c_str());
  const std::uint64_t lost = report.unhinted + report.stale_hints + report.unlisted;
  if (lost != 0 || !report.is_clean())
    std::printf("hints lost or stale: %s%s\n", number(lost).c_str(),
                repairs ? "" : "; kvhive pool fsck --repair has the steward mend what can be");
}

std::string repair_text(const Json& mended) {
  std::string text;
  for (const auto& [field, words] : {std::pair{"retired", "damaged blocks retired"},
                                     {"holders", "holds of nobody ended"},
                                     {"hints_dropped", "hints dropped"},
                                     {"hints_restored", "hints restored"},
                                     {"free_listed", "free blocks listed"},
                                     {"restamped", "blocks put back into the order"},
                                     {"fields", "fields of tables and counters set right"}})
    if (const auto count = mended.value(field, std::uint64_t{0}); count != 0)
      text += (text.empty() ? "" : ", ") + number(count) + " " + words;
  return text.empty() ? "nothing to mend" : text;
}

Expected<int> check(const CommonFlags& flags, const FsckFlags& how) {
  auto inspector = Inspector::attach(
      flags.socket_path(), how.is_privileged ? Privilege::tokens_too : Privilege::metadata_only);
  if (!inspector) return forward_error(inspector);
  Json mended;
  if (how.repairs) {
    auto done = inspector->repair();
    if (!done) return forward_error(done);
    mended = std::move(*done);
  }
  auto report = look(*inspector, how.is_quiescent ? Moment::quiescent : Moment::live);
  if (!report) return forward_error(report);
  if (flags.output() == Format::json) {
    Json json = to_json(*report);
    if (how.repairs) json["repaired"] = mended;
    print(json);
  } else {
    if (how.repairs) std::printf("repair: %s\n", repair_text(mended).c_str());
    print_report(*report, how.repairs);
  }
  return report->is_clean() ? 0 : 1;
}

}  // namespace

void add_pool(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<CommonFlags>();
  CLI::App* pool = app.add_subcommand("pool", "look into the pool of a running daemon");
  pool->require_subcommand(1);
  const auto finish = [&exit_code](const Expected<void>& done) {
    if (!done) exit_code = fail(done.error());
  };

  CLI::App* stat_command = pool->add_subcommand("stat", "how full it is and how often it was hit");
  flags->add_to(*stat_command);
  stat_command->callback([=] { finish(stat(*flags)); });

  CLI::App* procs_command = pool->add_subcommand("procs", "who is attached, and what they hold");
  flags->add_to(*procs_command);
  procs_command->callback([=] { finish(procs(*flags)); });

  auto state = std::make_shared<std::string>();
  auto limit = std::make_shared<std::size_t>(50);
  CLI::App* blocks_command = pool->add_subcommand("blocks", "one line per block that is not free");
  flags->add_to(*blocks_command);
  blocks_command->add_option("--state", *state, "only these: free, filling, ready, idle or retired")
      ->check(CLI::IsMember({"free", "filling", "ready", "idle", "retired"}));
  blocks_command->add_option("--limit", *limit, "at most so many lines (default 50)");
  blocks_command->callback([=] { finish(blocks(*flags, *state, *limit)); });

  auto how = std::make_shared<FsckFlags>();
  CLI::App* fsck_command =
      pool->add_subcommand("fsck", "check every invariant; exit code 0 only when clean");
  flags->add_to(*fsck_command);
  fsck_command->add_flag("--privileged", how->is_privileged,
                         "read the blocks' tokens, too, and compare them with their names");
  fsck_command->add_flag("--repair", how->repairs,
                         "first have the daemon's steward rebuild hints, put lost blocks back and "
                         "retire damaged ones");
  fsck_command->add_flag("--quiescent", how->is_quiescent,
                         "nobody works now: a free block that cannot be found is a violation");
  fsck_command->callback([=, &exit_code] {
    auto code = check(*flags, *how);
    exit_code = code ? *code : fail(code.error());
  });
  add_pool_why(*pool, exit_code);
}

}  // namespace kvhive
