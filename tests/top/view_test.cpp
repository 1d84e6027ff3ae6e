// Whole frames as text, beside golden files. To look at one: cat tests/top/golden/*.txt

#include "tools/top/view.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>

#include "tests/snapshot/sample_snapshot.hpp"
#include "tools/screen/paint.hpp"

namespace kvhive::testing {
namespace {

constexpr OutputStyle kPlainStyle{Colours::none, Letters::ascii};

std::string draw(const Snapshot& snapshot, const TopSettings& settings, ScreenSize size) {
  const Rates rates = rates_between(earlier_snapshot(), snapshot);
  return draw_top({snapshot, rates, settings, snapshot.seconds + 0.2}, size, kPlainStyle).text();
}

void expect_golden(const std::string& name, const std::string& text) {
  const std::string path = std::string(KVHIVE_GOLDEN_DIR) + "/" + name + ".txt";
  if (std::getenv("KVHIVE_WRITE_GOLDEN") != nullptr) std::ofstream(path) << text;
  std::ifstream file(path);
  EXPECT_EQ(text, std::string(std::istreambuf_iterator<char>(file), {})) << path;
}

TEST(TopView, At80x24) { expect_golden("80x24", draw(sample_snapshot(), {}, {80, 24})); }

TEST(TopView, At200x60) { expect_golden("200x60", draw(sample_snapshot(31), {}, {200, 60})); }

TEST(TopView, At60x20) {
  TopSettings settings;
  settings.pane = Pane::domains;
  expect_golden("60x20", draw(sample_snapshot(), settings, {60, 20}));
}

TEST(TopView, TheMapTakesTheScreenInItsPane) {
  TopSettings settings;
  settings.pane = Pane::map;
  expect_golden("map_80x24", draw(sample_snapshot(), settings, {80, 24}));
}

TEST(TopView, Help) {
  TopSettings settings;
  settings.has_help = true;
  expect_golden("help_80x24", draw(sample_snapshot(), settings, {80, 24}));
}

TEST(TopView, PlainIsAsHighAsItsRows) {
  const Snapshot snapshot = sample_snapshot(31);
  const Rates rates;
  const TopSettings settings;
  const std::string text = draw_plain({snapshot, rates, settings, 100}, 80, kPlainStyle).text();
  EXPECT_EQ(text.find("not shown"), std::string::npos);
  EXPECT_NE(text.find("5003 a?[2Jname"), std::string::npos) << "a client's name commands nothing";
  EXPECT_EQ(text.find("q quit"), std::string::npos) << "there are no keys";
  expect_golden("plain_80", text);
}

/// Every size is drawn within its bounds, or says that it is too small.
TEST(TopView, EverySizeFits) {
  const Snapshot snapshot = sample_snapshot(31);
  for (std::size_t width = 1; width < 130; width += 3)
    for (std::size_t height = 1; height < 40; ++height)
      for (const Pane pane : {Pane::engines, Pane::domains, Pane::clients, Pane::map}) {
        TopSettings settings;
        settings.pane = pane;
        const std::string text = draw(snapshot, settings, {width, height});
        ASSERT_EQ(static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n')), height);
        if (width < kLeastSize.width || height < kLeastSize.height) {
          EXPECT_EQ(text.find("device"), std::string::npos);
        } else {
          EXPECT_NE(text.find("kvhive top"), std::string::npos);
        }
      }
}

TEST(TopView, TooSmallSaysWhatItNeeds) {
  EXPECT_EQ(draw(sample_snapshot(), {}, {39, 3}),
            "kvhive top needs 40 x 10\nthis is 39 x 3; q quits\n\n");
}

TEST(TopView, ASilentKeeperIsSaidAndTheNumbersGoOn) {
  Snapshot snapshot = sample_snapshot();
  snapshot.daemon.state = DaemonState::silent;
  snapshot.daemon.trouble = "kvhived 3999 is stopped (kill -CONT 3999)";
  snapshot.daemon.told_ago = 12.4;
  const std::string text = draw(snapshot, {}, {80, 24});
  EXPECT_NE(text.find("! kvhived 3999 is stopped (kill -CONT 3999); names are 12.4 s old"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("NOT ANSWERING"), std::string::npos);
  EXPECT_NE(text.find("prompt 2,000/s"), std::string::npos) << text;
}

/// Shares are rounded down; what that leaves over is nobody's free block.
TEST(TopView, TheBarShowsWhatThereIsAndNothingElse) {
  Snapshot snapshot = sample_snapshot();
  const auto bar = [&](const TierReport& tier) {
    snapshot.pool.tiers[0] = tier;
    const std::string text = draw(snapshot, {}, {80, 24});
    const std::size_t begin = text.find('[') + 1;
    return text.substr(begin, text.find(']') - begin);
  };
  EXPECT_EQ(bar({.blocks = 2047, .filling = 1, .held = 1600, .idle = 446}),
            "F" + std::string(28, 'H') + std::string(7, 'I'));
  EXPECT_EQ(bar({.blocks = 2047, .free = 2046, .retired = 1}), "X" + std::string(35, '.'));
  EXPECT_EQ(bar({.blocks = 2047, .free = 1, .held = 2046}), std::string(35, 'H') + ".");
  EXPECT_EQ(bar({.blocks = 2047, .idle = 2047}), std::string(36, 'I'));
}

TEST(TopView, AnEngineThatDoesNotServeIsMarked) {
  const std::string text = draw(sample_snapshot(), {}, {80, 24});
  EXPECT_NE(text.find("1 ! stopped"), std::string::npos) << text;
}

TEST(TopView, PausedSaysSoAndHowOldTheNumbersAre) {
  TopSettings settings;
  settings.is_paused = true;
  const Snapshot snapshot = sample_snapshot();
  const Rates rates;
  const std::string text =
      draw_top({snapshot, rates, settings, snapshot.seconds + 75}, {80, 24}, kPlainStyle).text();
  EXPECT_NE(text.find("PAUSED  data 75.0 s old"), std::string::npos) << text;
}

TEST(TopView, TheFilterHidesRowsAndIsShown) {
  TopSettings settings;
  settings.filter = "stopped";
  settings.is_typing = true;
  const std::string text = draw(sample_snapshot(), settings, {80, 24});
  EXPECT_EQ(text.find("0 serving"), std::string::npos) << text;
  EXPECT_NE(text.find("/stopped_"), std::string::npos) << text;
  settings.is_typing = false;
  settings.filter = "nothing has this";
  EXPECT_NE(draw(sample_snapshot(), settings, {80, 24}).find("none with this text"),
            std::string::npos);
}

TEST(TopView, TheOrderFollowsTheChosenColumn) {
  TopSettings settings;
  settings.sort[0] = 3;  // waiting
  const std::string text = draw(sample_snapshot(), settings, {80, 24});
  EXPECT_LT(text.find("1 ! stopped"), text.find("0 serving")) << text;
  EXPECT_NE(text.find("*wait"), std::string::npos);
}

/// Nothing jumps: with other numbers every column begins where it did.
TEST(TopView, ColumnsStayWhereTheyAre) {
  Snapshot large = sample_snapshot();
  for (EngineRow& engine : large.engines) {
    for (std::uint64_t& value : engine.counted.values) value *= 977;
    engine.held_blocks = 999'999'999;
  }
  const auto heading = [](const std::string& text) {
    const std::size_t at = text.find("*eng");
    return text.substr(at, text.find('\n', at) - at);
  };
  EXPECT_EQ(heading(draw(large, {}, {80, 24})), heading(draw(sample_snapshot(), {}, {80, 24})));
}

TEST(TopView, WithColoursTheLettersStay) {
  const Snapshot snapshot = sample_snapshot();
  const Rates rates;
  const TopSettings settings;
  const TopView view{snapshot, rates, settings, 100};
  const Frame coloured = draw_top(view, {80, 24}, {Colours::all, Letters::utf8});
  EXPECT_EQ(coloured.text(), draw_top(view, {80, 24}, kPlainStyle).text());
  EXPECT_LT(repainted(nullptr, coloured, Colours::all).size(), 16'384u)
      << "over ssh, twice a second";
}

}  // namespace
}  // namespace kvhive::testing
