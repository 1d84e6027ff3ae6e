// What each of several models is told: its own directory and its own adapters.

#include "config/models/hosted_models.hpp"

#include <gmock/gmock.h>

#include "config/models/lora_modules.hpp"

namespace kvhive {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Options options_with(const std::string& model, const std::string& lora_modules) {
  Options options;
  options.model = model;
  options.lora_modules = lora_modules;
  return options;
}

/// By model, what --lora-modules is for its engines.
std::vector<std::string> modules_of_each(const Options& options) {
  const auto checked = check_options(options);
  EXPECT_TRUE(checked) << checked.error().text;
  const std::vector<HostedModel> models = hosted_models(options).value();
  std::vector<std::string> all;
  for (std::size_t m = 0; m < models.size(); ++m)
    all.push_back(options_of(options, models, m).lora_modules);
  return all;
}

std::string refusal(const std::string& model, const std::string& lora_modules) {
  const auto checked = check_options(options_with(model, lora_modules));
  return checked ? "" : checked.error().text;
}

TEST(AdaptersOfModels, EachModelHasItsOwn) {
  EXPECT_THAT(modules_of_each(options_with("a=/x,b=/y,c=/z", "b:poet=/p,a:clerk=/k,b:sage=/s=1")),
              ElementsAre("clerk=/k", "poet=/p,sage=/s=1", ""));
  EXPECT_THAT(modules_of_each(options_with("a=/x,b=/y", "")), ElementsAre("", ""));
}

TEST(AdaptersOfModels, AModelsNameMayHaveColonsAndTheLongestOneCounts) {
  EXPECT_THAT(modules_of_each(options_with("a=/x,a:b=/y,a:b:c=/z",
                                           "a:poet=/p,a:b:clerk=/k,a:bc=/q,a:b:c:sage=/s")),
              ElementsAre("poet=/p,bc=/q", "clerk=/k", "sage=/s"));
  EXPECT_THAT(modules_of_each(options_with("/models/a,/models/b", "b:clerk=/k,a:poet=/p")),
              ElementsAre("poet=/p", "clerk=/k"))
      << "names of directories";
}

/// A ':' is a part of the adapter's name there.
TEST(AdaptersOfModels, AnOnlyModelIsNotNamed) {
  for (const char* model : {"/models/a", "a=/x"})
    EXPECT_THAT(modules_of_each(options_with(model, "poet=/p,a:clerk=/k")),
                ElementsAre("poet=/p,a:clerk=/k"));
}

TEST(AdaptersOfModels, OneThatNamesNoModelIsRefused) {
  for (const char* module : {"poet=/p", "c:poet=/p", "A:poet=/p", "a=/p", "poet=/a:b=/p"})
    EXPECT_EQ(refusal("a=/x,b=/y", std::string("a:clerk=/k,") + module),
              "lora-modules '" + std::string(module) +
                  "' has none of the models in front (a, b); write "
                  "MODEL:NAME=DIRECTORY,MODEL:NAME=DIRECTORY");
  EXPECT_THAT(refusal("a=/x,b=/y", "a:=/p"), HasSubstr("'a:=/p' lacks a name or a directory"));
  EXPECT_THAT(refusal("a=/x,b=/y", "a:poet="), HasSubstr("write MODEL:NAME=DIRECTORY"));
  EXPECT_THAT(refusal("a=/x,b=/y", "a:" + std::string(65, 'p') + "=/p"),
              HasSubstr("more than 64 bytes"));
}

/// Over HTTP one text names a model or an adapter.
TEST(AdaptersOfModels, NamesAreUniqueAmongAllAdaptersAndModels) {
  EXPECT_EQ(refusal("a=/x,b=/y", "a:poet=/p,b:poet=/q"),
            "lora-modules names 'poet' twice; give each adapter a name of its own, whichever "
            "model's it is");
  for (const char* module : {"a:a=/p", "a:b=/p"})
    EXPECT_THAT(refusal("a=/x,b=/y", module),
                HasSubstr("is a model's own name; give the adapter another"));
  EXPECT_THAT(refusal("/models/a", "a=/p"), HasSubstr("'a' is the model's own name"));
  EXPECT_EQ(refusal("a=/x,b=/y", "a:poet=/p,b:clerk=/p"), "") << "one directory for two";
}

/// An engine has one model, whatever its name.
TEST(AdaptersOfModels, AnEngineReadsWhatItIsGiven) {
  const Options all = options_with("a=/x,b:c=/y", "b:c:poet=/p,b:c:sage=/s,a:clerk=/k");
  const Options own = options_of(all, hosted_models(all).value(), 1);
  EXPECT_TRUE(check_options(own));
  EXPECT_EQ(own.model, "b:c=/y");
  const auto modules = parse_lora_modules(own.lora_modules);
  ASSERT_TRUE(modules);
  ASSERT_EQ(modules->size(), 2u);
  EXPECT_EQ(modules->at(1).name, "sage");
  EXPECT_EQ(modules->at(1).directory, "/s");
}

}  // namespace
}  // namespace kvhive
