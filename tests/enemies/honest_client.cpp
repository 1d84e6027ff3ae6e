#include "tests/enemies/honest_client.hpp"

#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <optional>
#include <thread>
#include <vector>

#include "tests/tools/daemon.hpp"

namespace kvhive::testing {
namespace {

using Clock = std::chrono::steady_clock;

// Shorter than a block, so that no request depends on what the enemies left in the cache.
const char* const kPrompts[] = {"In the beginning", "And God said", "And it came to pass",
                                "Let there be light", "And the evening and the morning"};
constexpr std::uint32_t kTokens = 8;
constexpr std::chrono::milliseconds kPause{5};
constexpr std::chrono::seconds kHang{30};
/// After so many requests it connects anew, so that connecting is tried, too.
constexpr std::size_t kRequestsPerConnection = 100;

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

struct Outcome {
  std::vector<TokenId> tokens;
  double first_ms = 0, whole_ms = 0;
  std::string error;
};

class HonestClient {
 public:
  HonestClient(Board& board, std::string socket_path)
      : board_(board), socket_path_(std::move(socket_path)) {}

  [[noreturn]] void live() {
    for (std::size_t i = 0;; ++i) {
      if (i % kRequestsPerConnection == 0) reconnect();
      const std::uint32_t round = board_.round;
      const Outcome outcome = ask(kPrompts[i % std::size(kPrompts)]);
      compare(i, outcome);
      const bool is_within = round == board_.round;
      board_.requests.add({is_within ? round : 0, static_cast<float>(outcome.first_ms),
                           static_cast<float>(outcome.whole_ms)});
      std::this_thread::sleep_for(kPause);
    }
  }

 private:
  void complain(const std::string& what) {
    if (board_.is_over) pause();
    board_.honest.add(what);
  }

  void reconnect() {
    client_.reset();
    const auto start = Clock::now();
    while (!client_) {
      auto connected = Client::connect(client_options(socket_path_));
      if (connected)
        client_.emplace(std::move(*connected));
      else
        complain("cannot connect: " + connected.error().text);
    }
    const auto us = static_cast<std::uint64_t>(ms_since(start) * 1000);
    if (us > board_.slowest_connect_us) board_.slowest_connect_us = us;
  }

  Outcome ask(const std::string& prompt) {
    Outcome outcome;
    const auto start = Clock::now();
    const auto number = client_->submit(request_of(prompt, kTokens));
    if (!number) return failed(outcome, number.error().text);
    while (true) {
      const auto woken = client_->wait(std::chrono::milliseconds(1000));
      if (!woken) return failed(outcome, woken.error().text);
      const auto news = client_->read(*number);
      if (outcome.tokens.empty() && !news->tokens.empty()) outcome.first_ms = ms_since(start);
      for (const OutputToken& token : news->tokens) outcome.tokens.push_back(token.token);
      if (news->reason == Finish::error) return failed(outcome, news->error.text);
      if (news->reason != Finish::none) break;
      if (Clock::now() - start > kHang) return failed(outcome, "no end after 30 s");
    }
    outcome.whole_ms = ms_since(start);
    return outcome;
  }

  Outcome failed(Outcome outcome, const std::string& why) {
    outcome.error = why;
    complain("a request failed: " + why);
    reconnect();
    return outcome;
  }

  void compare(std::size_t i, const Outcome& outcome) {
    if (!outcome.error.empty()) return;
    std::vector<TokenId>& expected = expected_[i % std::size(kPrompts)];
    if (expected.empty()) {
      expected = outcome.tokens;
      if (outcome.tokens.size() != kTokens) complain("a first request is incomplete");
    } else if (outcome.tokens != expected) {
      complain("request " + std::to_string(i) + " got other tokens than before");
    }
    board_.checked_tokens += outcome.tokens.size();
  }

  Board& board_;
  std::string socket_path_;
  std::optional<Client> client_;
  std::vector<std::vector<TokenId>> expected_{std::size(kPrompts)};  ///< by prompt
};

}  // namespace

const std::size_t kRequestsToLearn = std::size(kPrompts);

void live_as_honest_client(Board& board, const std::string& socket_path) {
  HonestClient(board, socket_path).live();
}

}  // namespace kvhive::testing
