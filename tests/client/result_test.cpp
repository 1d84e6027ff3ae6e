// The client library without a daemon. Errors have a text, and the use of an error as a value
// throws an exception instead of being undefined behaviour.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <chrono>

#include "ipc/protocol.hpp"
#include "kvhive/client.hpp"
#include "tests/support/temp_directory.hpp"

namespace kvhive::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::Property;

ClientOptions options_for(const std::filesystem::path& socket, int timeout_ms = 10'000) {
  ClientOptions options;
  options.socket = socket.string();
  options.connect_timeout = milliseconds(timeout_ms);
  return options;
}

/// A listening socket whose connections are never accepted, as a stopped daemon's.
UniqueFd stopped_daemon(const std::filesystem::path& path, int backlog) {
  UniqueFd listener(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  const sockaddr_un address = *address_of(path.string());
  EXPECT_EQ(bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  EXPECT_EQ(listen(listener.get(), backlog), 0);
  return listener;
}

TEST(Result, HoldsAValueOrAnError) {
  Result<int> value = 7;
  EXPECT_TRUE(value.has_value());
  EXPECT_EQ(*value, 7);
  EXPECT_EQ(value.error().code, ErrorCode::none);
  const Result<int> error = ClientError{ErrorCode::never_fits, "too long"};
  EXPECT_FALSE(error);
  EXPECT_EQ(error.error().text, "too long");
  EXPECT_TRUE(Result<void>().has_value());
}

TEST(Result, TakingTheValueOfAnErrorThrowsItsTextAndCode) {
  Result<std::string> error = ClientError{ErrorCode::not_running, "no daemon"};
  for (const auto& misuse : std::initializer_list<std::function<void()>>{
           [&] { (void)*error; }, [&] { (void)error->size(); }, [&] { (void)error.value(); },
           [&] { (void)*std::move(error); },
           [] {
             Result<void>(ClientError{ErrorCode::not_running, "no daemon"}).value();
           }}) {
    try {
      misuse();
      FAIL() << "no exception was thrown";
    } catch (const ClientException& exception) {
      EXPECT_EQ(exception.code(), ErrorCode::not_running);
      EXPECT_STREQ(exception.what(), "kvhive: no daemon");
    }
  }
}

TEST(ConnectWithoutADaemon, SaysSo) {
  const TempDirectory directory;
  const auto client = Client::connect(options_for(directory.path() / "none.sock"));
  ASSERT_FALSE(client.has_value());
  EXPECT_EQ(client.error().code, ErrorCode::not_running);
  EXPECT_THAT(client.error().text, HasSubstr("none.sock; start kvhived"));
}

/// The README's snippet once crashed here.
TEST(ConnectWithoutADaemon, UncheckedUseOfTheResultThrowsTheErrorsText) {
  const TempDirectory directory;
  auto client = Client::connect(options_for(directory.path() / "none.sock"));
  EXPECT_THROW(
      {
        try {
          (void)client->generate(GenerateRequest{});
        } catch (const ClientException& exception) {
          EXPECT_THAT(exception.what(), HasSubstr("no daemon listens on"));
          throw;
        }
      },
      ClientException);
}

TEST(ConnectToAStoppedDaemon, EndsAfterTheTimeout) {
  const TempDirectory directory;
  const auto path = directory.path() / "stopped.sock";
  const UniqueFd listener = stopped_daemon(path, 5);
  const auto client = Client::connect(options_for(path, 50));
  ASSERT_FALSE(client.has_value());
  EXPECT_EQ(client.error().code, ErrorCode::not_running);
  EXPECT_THAT(client.error().text,
              HasSubstr("it is starting, stopped (kill -CONT it) or overloaded"));
}

/// The kernel lets as many connections wait as the backlog allows; the next connect() blocks.
TEST(ConnectToAStoppedDaemon, EndsAfterTheTimeoutEvenIfTheBacklogIsFull) {
  const TempDirectory directory;
  const auto path = directory.path() / "full.sock";
  const UniqueFd listener = stopped_daemon(path, 0);
  std::vector<UniqueFd> waiting;
  const sockaddr_un address = *address_of(path.string());
  do waiting.emplace_back(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  while (connect(waiting.back().get(), reinterpret_cast<const sockaddr*>(&address),
                 sizeof address) == 0);
  const auto client = Client::connect(options_for(path, 50));
  ASSERT_FALSE(client.has_value());
  EXPECT_EQ(client.error().code, ErrorCode::not_running) << client.error().text;
}

TEST(ErrorCodes, HaveNames) {
  EXPECT_EQ(to_string(ErrorCode::not_running), "not_running");
  EXPECT_EQ(to_string(ErrorCode::os_error), "os_error");
  EXPECT_EQ(to_string(ErrorCode(257)), "unknown");
  EXPECT_EQ(to_string(Finish::length), "length");
}

TEST(ChannelBytes, OfARequestGrowWithItsTokensAndItsPrompt) {
  GenerateRequest request;
  request.prompt = "In the beginning";
  EXPECT_EQ(channel_bytes_for(request), std::size_t{1} << 20);
  request.max_tokens = 100'000;
  EXPECT_GT(channel_bytes_for(request), 3'200'000u);
  request.prompt = std::string(50'000'000, 'x');
  EXPECT_GT(channel_bytes_for(request), 50'000'000u);
  EXPECT_LT(channel_bytes_for(request), 51'000'000u) << "prompts and answers have a file each";
}

}  // namespace
}  // namespace kvhive::testing
