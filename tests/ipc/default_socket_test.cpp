#include "ipc/default_socket.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

namespace kvhive {
namespace {

class DefaultSocket : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"KVHIVE_SOCKET", "XDG_RUNTIME_DIR"}) {
      const char* value = std::getenv(name);
      if (value != nullptr) before_[name] = value;
      unsetenv(name);
    }
  }
  void TearDown() override {
    for (const char* name : {"KVHIVE_SOCKET", "XDG_RUNTIME_DIR"}) unsetenv(name);
    for (const auto& [name, value] : before_) setenv(name.c_str(), value.c_str(), 1);
  }
  std::map<std::string, std::string> before_;
};

TEST_F(DefaultSocket, ComesFromTheEnvironmentOrElseIsUnderRun) {
  EXPECT_EQ(default_socket(), "/run/kvhive/kvhived.sock");
  setenv("XDG_RUNTIME_DIR", "/run/user/7", 1);
  EXPECT_EQ(default_socket(), "/run/user/7/kvhive/kvhived.sock");
  setenv("KVHIVE_SOCKET", "", 1);
  EXPECT_EQ(default_socket(), "/run/user/7/kvhive/kvhived.sock");
  setenv("KVHIVE_SOCKET", "/chosen.sock", 1);
  EXPECT_EQ(default_socket(), "/chosen.sock");
}

/// XDG_RUNTIME_DIR is root's when root starts a daemon that changes its user.
TEST_F(DefaultSocket, OfTheSystemIsUnderRunWhateverTheUsersDirectoryIs) {
  setenv("XDG_RUNTIME_DIR", "/run/user/0", 1);
  EXPECT_EQ(system_socket(), "/run/kvhive/kvhived.sock");
  setenv("KVHIVE_SOCKET", "/chosen.sock", 1);
  EXPECT_EQ(system_socket(), "/chosen.sock");
}

}  // namespace
}  // namespace kvhive
