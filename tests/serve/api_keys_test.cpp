// The file of API keys, and which key a request was asked with.

#include "tools/serve/access/api_keys.hpp"

#include <gtest/gtest.h>

namespace kvhive::testing {
namespace {

TEST(ApiKeys, OnlyTheWholeKeyIsTheKey) {
  const ApiKeys keys = ApiKeys::parse("abab red\nother\n", "keys").value();
  ASSERT_NE(keys.find("Bearer abab"), nullptr);
  EXPECT_EQ(keys.find("bearer abab")->domain, "red");
  EXPECT_EQ(keys.find("bearer abab")->number, 1u);
  EXPECT_EQ(keys.find("Bearer other")->number, 2u);
  for (const char* wrong : {"", "ab", "aba", "abac", "bbab", "ababa", "abababab", "abab ", " abab"})
    EXPECT_EQ(keys.find("Bearer " + std::string(wrong)), nullptr) << "'" << wrong << "'";
  for (const char* wrong : {"", "abab", "Basic abab", "Bearer", "Bearerabab"})
    EXPECT_EQ(keys.find(wrong), nullptr) << "'" << wrong << "'";
}

}  // namespace
}  // namespace kvhive::testing
