// kvhive pool blocks: one line per block that is not free.

#include <bit>
#include <cstdio>
#include <memory>

#include "pool/care/pool_report.hpp"
#include "tools/cli/inspector.hpp"
#include "tools/cli/pool_commands.hpp"
#include "tools/cli/table.hpp"

namespace kvhive {
namespace {

using Json = nlohmann::json;

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
  auto inspector =
      Inspector::attach(flags.socket_path(), Privilege::metadata_only, WithoutKeeper::read_pool);
  if (!inspector) return forward_error(inspector);
  auto domains = inspector->domains();
  if (!domains) return forward_error(domains);
  Table table({"block", "tier", "state", "generation", "slots", "domain", "group", "depth", "uid",
               "parent", "stamp"});
  Json json = Json::array();
  std::size_t shown = 0, matching = 0;
  for_each_block(inspector->memory(), [&](const BlockReport& b) {
    const std::string is = state_of(b.word);
    if (state.empty() ? b.word.state() == BlockState::free : is != state) return;
    if (++matching > limit) return;
    ++shown;
    const bool has_content = b.word.state() == BlockState::ready;
    const bool is_first = has_content && b.parent_uid >= kRootUid;
    if (flags.output() == Format::json) {
      json.push_back({{"block", b.id.value},
                      {"tier", to_string(b.tier)},
                      {"state", is},
                      {"generation", b.word.generation()},
                      {"holders", b.word.holders()},
                      {"group", b.group.value},
                      {"depth", b.depth},
                      {"uid", b.uid},
                      {"parent_uid", b.parent_uid},
                      {"domain", domains->name(b.domain)},
                      {"stamp", b.stamp}});
    } else {
      table.add({std::to_string(b.id.value), std::string(to_string(b.tier)), is,
                 std::to_string(b.word.generation()), holders_of(b.word.holders()),
                 b.word.state() == BlockState::free ? "-" : domains->name(b.domain),
                 has_content ? std::to_string(b.group.value) : "-",
                 has_content ? std::to_string(b.depth) : "-",
                 has_content ? std::to_string(b.uid) : "-",
                 is_first      ? "root"
                 : has_content ? std::to_string(b.parent_uid)
                               : "-",
                 b.stamp != 0 ? std::to_string(b.stamp) : "-"});
    }
  });
  if (flags.output() == Format::json)
    print(json);
  else
    std::printf("%s%s of %s blocks shown%s\n", table.text().c_str(), with_commas(shown).c_str(),
                with_commas(matching).c_str(), shown < matching ? " (--limit for more)" : "");
  return {};
}

}  // namespace

void add_pool_blocks(CLI::App& pool, int& exit_code) {
  auto flags = std::make_shared<CommonFlags>();
  auto state = std::make_shared<std::string>();
  auto limit = std::make_shared<std::size_t>(50);
  CLI::App* command = pool.add_subcommand("blocks", "one line per block that is not free");
  flags->add_to(*command);
  command->add_option("--state", *state, "only these: free, filling, ready, idle or retired")
      ->check(CLI::IsMember({"free", "filling", "ready", "idle", "retired"}));
  command->add_option("--limit", *limit, "at most so many lines (default 50)");
  command->callback([=, &exit_code] {
    if (auto done = blocks(*flags, *state, *limit); !done) exit_code = fail(done.error());
  });
}

}  // namespace kvhive
