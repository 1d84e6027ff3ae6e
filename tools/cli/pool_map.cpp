// kvhive pool map: the pool block by block as a picture, on the terminal or in a file.

#include "tools/map/pool_map.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>

#include "tools/cli/inspector.hpp"
#include "tools/cli/pool_commands.hpp"
#include "tools/map/map_drawing.hpp"
#include "tools/map/map_frame.hpp"
#include "tools/map/png.hpp"
#include "tools/map/svg.hpp"
#include "tools/program/choice_flag.hpp"
#include "tools/screen/paint.hpp"

namespace kvhive {
namespace {

using Json = nlohmann::json;

/// Wider pictures than 1024 cells of 2 pixels are for no screen.
constexpr std::uint32_t kMostPictureCells = 1 << 20;

struct MapFlags {
  CommonFlags common;
  MapBy by = MapBy::state;
  std::uint32_t blocks_per_cell = 0;  ///< 0 = as few as fit
  bool is_ascii = false, is_dense = false;
  std::string svg, png;

  bool has_picture() const { return !svg.empty() || !png.empty(); }
};

Json to_json(const PoolMap& map, const std::string& epoch, const std::string& model) {
  Json legend = Json::array();
  for (std::size_t i = 0; i < map.categories.size(); ++i)
    legend.push_back({{"name", map.categories[i].name},
                      {"letter", std::string(1, map.categories[i].letter)},
                      {"blocks", map.totals[i]}});
  Json tiers = Json::array();
  for (const TierMap& tier : map.tiers) {
    Json cells = Json::array();
    for (const MapCell& cell : tier.cells) {
      Json counts = Json::object();
      for (std::size_t i = 0; i < cell.counts.size(); ++i)
        if (cell.counts[i] != 0) counts[map.categories[i].name] = cell.counts[i];
      cells.push_back({{"first_block", cell.first},
                       {"blocks", cell.blocks},
                       {"letter", std::string(1, map.letter(cell))},
                       {"counts", counts}});
    }
    tiers.push_back({{"tier", to_string(tier.tier)},
                     {"first_block", tier.first},
                     {"blocks", tier.blocks},
                     {"cells", cells}});
  }
  return {{"epoch", epoch},          {"model", model},
          {"by", to_string(map.by)}, {"blocks_per_cell", map.blocks_per_cell},
          {"legend", legend},        {"tiers", tiers}};
}

Expected<void> write_file(const char* flag, const std::string& path, const std::string& bytes) {
  errno = 0;
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size())).flush();
  if (file) return {};
  return failure(Errc::os_error, std::string(flag) + " '" + path + "' could not be written: " +
                                     std::strerror(errno != 0 ? errno : EIO) +
                                     "; name a file in a directory that you may write to");
}

Expected<void> write_pictures(const MapFlags& flags, const Drawing& drawing) {
  if (!flags.svg.empty())
    if (auto done = write_file("--svg", flags.svg, svg_of(drawing)); !done) return done;
  if (flags.png.empty()) return {};
  const auto png = png_of(drawing);
  if (!png) return forward_error(png);
  return write_file("--png", flags.png, *png);
}

/// --ascii, and what the place of the output can show.
Expected<MapLook> look_of(const MapFlags& flags) {
  MapLook look{style_of_environment(isatty(STDOUT_FILENO) != 0), MapGlyphs::letters};
  if (flags.is_ascii) look.style.letters = Letters::ascii;
  if (!flags.is_dense) return look;
  if (look.style.colours == Colours::none || look.style.letters == Letters::ascii)
    return failure(Errc::bad_argument,
                   "--dense needs a terminal with colours and UTF-8 (TERM, NO_COLOR and LANG say "
                   "what it has); leave it out, or take --png FILE");
  look.glyphs = MapGlyphs::halves;
  return look;
}

/// What is left of the screen beside title, blank lines, legend and the shell's next prompt.
ScreenSize room_for_cells(ScreenSize screen, MapBy by) {
  const std::size_t beside = 4 + (by == MapBy::state ? 2 : 4);
  return {screen.width, screen.height > beside + 4 ? screen.height - beside : 4};
}

Expected<void> map(const MapFlags& flags) {
  const bool is_json = flags.common.output() == Format::json;
  auto look = look_of(flags);
  if (!look) return forward_error(look);
  auto inspector = Inspector::attach(flags.common.socket_path(), Privilege::metadata_only,
                                     WithoutKeeper::read_pool);
  if (!inspector) return forward_error(inspector);
  auto domains = inspector->domains();
  if (!domains) return forward_error(domains);
  const PoolMemory& memory = inspector->memory();
  const ScreenSize screen = size_of_terminal(STDOUT_FILENO);

  std::uint32_t scale = flags.blocks_per_cell;
  if (scale == 0)
    scale = is_json || flags.has_picture()
                ? blocks_per_cell(memory.geometry(), grid_for(kPictureCells).columns,
                                  kPictureCells / grid_for(kPictureCells).columns)
                : scale_for(memory.geometry(), room_for_cells(screen, flags.by), look->glyphs);
  if (flags.has_picture() && memory.geometry().total_blocks() / scale > kMostPictureCells)
    return failure(Errc::bad_argument,
                   "--blocks-per-cell " + std::to_string(scale) + " makes a picture of " +
                       std::to_string(memory.geometry().total_blocks() / scale) +
                       " cells, more than " + std::to_string(kMostPictureCells) +
                       "; take a larger one, or leave it out");

  const PoolReport report = report_pool(memory);
  const PoolMap map =
      sort_blocks(memory, flags.by, map_names(report, std::move(domains->names))).map(scale);
  const std::string title = "pool " + report.epoch.substr(0, 8) + " of " + inspector->model() +
                            ", by " + std::string(to_string(flags.by));
  if (flags.has_picture())
    if (auto done = write_pictures(flags, draw_map(map, title)); !done) return done;
  if (is_json) {
    print(to_json(map, report.epoch, inspector->model()));
  } else if (!flags.has_picture()) {
    Frame heading({screen.width, 2});
    heading.put(0, 0, cut(title, screen.width), kBold);
    heading.put(1, 0, cut(scale_text(map), screen.width), kFaint);
    Frame gap({screen.width, 1});
    for (const Frame& part : {heading, draw_cells(map, memory.geometry(), screen.width, *look), gap,
                              draw_legend(map, screen.width, *look)})
      std::printf("%s", printed(part, look->style.colours).c_str());
  }
  return {};
}

}  // namespace

void add_pool_map(CLI::App& pool, int& exit_code) {
  auto flags = std::make_shared<MapFlags>();
  CLI::App* command = pool.add_subcommand(
      "map", "block by block as a picture: who holds what, what is cached, what goes next");
  flags->common.add_to(*command);
  add_choice<MapBy>(*command, "--by", flags->by,
                    "what colour and letter say: a block's state, the engine that holds it, the "
                    "domain of its content, or how soon it is evicted")
      ->default_str("state");
  command
      ->add_option("--blocks-per-cell", flags->blocks_per_cell,
                   "blocks that one cell stands for; 0 = as few as fit the screen or the picture")
      ->type_name("N")
      ->check(CLI::Range(0u, 1u << 30))
      ->capture_default_str();
  command->add_flag("--ascii", flags->is_ascii, "no characters beyond ASCII");
  command->add_flag("--dense", flags->is_dense,
                    "two rows of cells in one line, by colour; needs colours and UTF-8");
  command->add_option("--svg", flags->svg, "writes the picture to this file instead")
      ->type_name("FILE");
  command->add_option("--png", flags->png, "writes the picture to this file instead")
      ->type_name("FILE");
  command->callback([flags, &exit_code] {
    if (auto done = map(*flags); !done) exit_code = fail(done.error());
  });
}

}  // namespace kvhive
