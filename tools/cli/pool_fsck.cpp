// kvhive pool fsck: checks every invariant of the pool, and has the steward repair it if asked to.

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <utility>

#include "base/byte_size.hpp"
#include "pool/care/fsck.hpp"
#include "tools/cli/inspector.hpp"
#include "tools/cli/pool_commands.hpp"
#include "tools/cli/table.hpp"
#include "tools/program/slot_owners.hpp"

namespace kvhive {
namespace {

using Json = nlohmann::json;

/// Slots of ended processes whose blocks the steward has not returned yet. That is no violation: it
/// follows within milliseconds, or when the steward goes on.
std::size_t count_unswept(const SlotOwners& owners) {
  return static_cast<std::size_t>(
      std::count_if(owners.begin(), owners.end(),
                    [](const SlotOwner& owner) { return owner.use == SlotOwner::Use::unswept; }));
}

struct FsckFlags {
  bool is_privileged = false, repairs = false, is_quiescent = false;
};

/// Checks with what the keeper knows of the slots. A violation is reported if a second check, with
/// fresher knowledge, finds it too: an engine that came or went meanwhile is no damage. Without a
/// keeper the slot table is taken at its word.
Expected<FsckReport> check_twice(const Inspector& inspector, Moment moment, std::size_t& unswept) {
  FsckReport report;
  for (int i = 0; i < 2; ++i) {
    std::optional<SlotOwners> owners;
    if (inspector.has_keeper()) {
      auto status = inspector.status();
      if (!status) return forward_error(status);
      owners = slot_owners_of((*status)["slots"]);
      unswept = count_unswept(*owners);
    }
    const FsckReport now = fsck(inspector.memory(), moment, owners ? &*owners : nullptr);
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
          {"duplicates", report.duplicates},
          {"stale_hints", report.stale_hints},
          {"unlisted", report.unlisted},
          {"miscounted", report.miscounted},
          {"token_bytes_checked", report.bytes_checked}};
}

void print_report(const FsckReport& report, bool repairs) {
  for (const std::string& violation : report.violations) std::printf("%s\n", violation.c_str());
  if (report.violations_in_all > report.violations.size())
    std::printf("... %s in all\n", with_commas(report.violations_in_all).c_str());
  std::printf(
      "%s: %s blocks checked, %s published (%s orphans, %s without a hint), %s of tokens "
      "compared with their names\n",
      report.is_clean() ? "clean" : "NOT CLEAN", with_commas(report.blocks_checked).c_str(),
      with_commas(report.ready).c_str(), with_commas(report.orphans).c_str(),
      with_commas(report.unhinted).c_str(), format_bytes(report.bytes_checked).c_str());
  if (report.duplicates != 0)
    std::printf(
        "%s of those without a hint are copies of blocks that have one, and are found by it\n",
        with_commas(report.duplicates).c_str());
  const std::uint64_t lost =
      report.unhinted - report.duplicates + report.stale_hints + report.unlisted;
  if (lost != 0 || !report.is_clean())
    std::printf("hints lost or stale: %s; each costs a miss or a scan at most%s\n",
                with_commas(lost).c_str(),
                repairs ? " (what cannot be found by anybody stays without)"
                        : ", and kvhive pool fsck --repair has the steward mend what can be");
}

std::string repair_text(const Json& mended) {
  std::string text;
  for (const auto& [field, words] : {std::pair{"retired", "damaged blocks retired"},
                                     {"holders", "holds of dead processes ended"},
                                     {"hints_dropped", "hints dropped"},
                                     {"hints_restored", "hints restored"},
                                     {"free_listed", "free blocks listed"},
                                     {"restamped", "blocks put back into the order"},
                                     {"fields", "fields of tables and counters set right"}})
    if (const auto count = mended.value(field, std::uint64_t{0}); count != 0)
      text += (text.empty() ? "" : ", ") + with_commas(count) + " " + words;
  return text.empty() ? "nothing to mend" : text;
}

Expected<int> check(const CommonFlags& flags, const FsckFlags& how) {
  auto inspector = Inspector::attach(
      flags.socket_path(), how.is_privileged ? Privilege::tokens_too : Privilege::metadata_only,
      how.repairs ? WithoutKeeper::fail : WithoutKeeper::read_pool);
  if (!inspector) return forward_error(inspector);
  Json mended;
  if (how.repairs) {
    auto done = inspector->have_steward(Care::repair);
    if (!done) return forward_error(done);
    mended = std::move(*done);
  }
  std::size_t unswept = 0;
  auto report =
      check_twice(*inspector, how.is_quiescent ? Moment::quiescent : Moment::live, unswept);
  if (!report) return forward_error(report);
  if (flags.output() == Format::json) {
    Json json = to_json(*report);
    json["unswept_slots"] = unswept;
    if (how.repairs) json["repaired"] = mended;
    print(json);
  } else {
    if (how.repairs) std::printf("repair: %s\n", repair_text(mended).c_str());
    print_report(*report, how.repairs);
    if (unswept != 0)
      std::printf(
          "%zu slots of ended processes wait for the steward; their blocks are held until "
          "it has swept them\n",
          unswept);
  }
  return report->is_clean() ? 0 : 1;
}

}  // namespace

void add_pool_fsck(CLI::App& pool, int& exit_code) {
  auto flags = std::make_shared<CommonFlags>();
  auto how = std::make_shared<FsckFlags>();
  CLI::App* command =
      pool.add_subcommand("fsck", "check every invariant; exit code 0 only when clean");
  flags->add_to(*command);
  command->add_flag("--privileged", how->is_privileged,
                    "read the blocks' tokens, too, and compare them with their names");
  command->add_flag("--repair", how->repairs,
                    "first have the daemon's steward rebuild hints, put lost blocks back and "
                    "retire damaged ones");
  command->add_flag("--quiescent", how->is_quiescent,
                    "no process works now: a free block that cannot be found is a violation");
  command->callback([=, &exit_code] {
    auto code = check(*flags, *how);
    exit_code = code ? *code : fail(code.error());
  });
}

}  // namespace kvhive
