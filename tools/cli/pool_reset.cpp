// kvhive pool reset: has the steward make the pool forget all that is cached.

#include <cstdio>
#include <memory>

#include "tools/cli/inspector.hpp"
#include "tools/cli/pool_commands.hpp"
#include "tools/cli/table.hpp"

namespace kvhive {
namespace {

Expected<int> reset(const CommonFlags& flags) {
  auto inspector =
      Inspector::attach(flags.socket_path(), Privilege::metadata_only, WithoutKeeper::fail);
  if (!inspector) return forward_error(inspector);
  const auto done = inspector->have_steward(Care::reset_cache);
  if (!done) return forward_error(done);
  if (flags.output() == Format::json)
    print(*done);
  else
    std::printf("the prefix cache is reset: %s cached blocks are found no more\n",
                with_commas((*done)["forgotten_blocks"].get<std::uint64_t>()).c_str());
  return 0;
}

}  // namespace

void add_pool_reset(CLI::App& pool, int& exit_code) {
  auto flags = std::make_shared<CommonFlags>();
  CLI::App* command = pool.add_subcommand(
      "reset",
      "make the pool forget all that is cached, for all engines and domains; what runs "
      "goes on with the blocks it has");
  flags->add_to(*command);
  command->callback([=, &exit_code] {
    auto code = reset(*flags);
    exit_code = code ? *code : fail(code.error());
  });
}

}  // namespace kvhive
