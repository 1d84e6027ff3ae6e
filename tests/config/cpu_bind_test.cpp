#include "config/cpu_bind.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config/options.hpp"

namespace kvhive {
namespace {

using ::testing::HasSubstr;

TEST(CpuBind, ListsAreReadAsTasksetWritesThem) {
  EXPECT_EQ(parse_processors("5").value(), ProcessorList({5}));
  EXPECT_EQ(parse_processors("8, 0-3,2").value(), ProcessorList({0, 1, 2, 3, 8}));
  EXPECT_EQ(to_string(ProcessorList{0, 1, 2, 3, 8, 10, 11}), "0-3,8,10-11");
  EXPECT_EQ(to_string(ProcessorList{}), "");
}

TEST(CpuBind, ABadListIsRefusedWithItsText) {
  for (const char* text : {"", "a", "3-1", "-1", "1-", "0-70000", "4294967296", "1 2", "0x1"}) {
    const auto list = parse_processors(text);
    ASSERT_FALSE(list.has_value()) << text;
    EXPECT_THAT(list.error().text, HasSubstr("'" + std::string(text) + "' is no list"));
  }
}

TEST(CpuBind, EachEngineHasAList) {
  const auto bind = parse_cpu_bind("0-1|4,6");
  ASSERT_TRUE(bind.has_value());
  EXPECT_EQ(bind->lists, (std::vector<ProcessorList>{{0, 1}, {4, 6}}));
  EXPECT_EQ(to_string(*bind), "0-1|4,6");
  EXPECT_EQ(parse_cpu_bind("auto")->way, CpuBind::Way::automatic);
  EXPECT_EQ(parse_cpu_bind("none")->way, CpuBind::Way::none);
  for (const char* text : {"", "0||1", "|", "all"})
    EXPECT_FALSE(parse_cpu_bind(text).has_value()) << text;
  EXPECT_THAT(parse_cpu_bind("all").error().text, HasSubstr("auto, none"));
}

TEST(CpuBind, ThereMustBeAsManyListsAsEngines) {
  Options options;
  options.model = "a=/x,b=/y";
  options.engines = 2;
  options.cpu_bind = *parse_cpu_bind("0|1|2");
  const auto checked = check_options(options);
  ASSERT_FALSE(checked.has_value());
  EXPECT_EQ(checked.error().text,
            "cpu-bind: '0|1|2' has 3 lists for 4 engines; write one for each, with a | between");
  options.cpu_bind = *parse_cpu_bind("0|1|2|3");
  EXPECT_TRUE(check_options(options).has_value());
}

}  // namespace
}  // namespace kvhive
