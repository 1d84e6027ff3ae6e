#pragma once
// Requests that tests of whole daemons make, and reading their answers piece by piece.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/tools/daemon.hpp"

namespace kvhive::testing {

inline GenerateRequest long_request(std::uint32_t max_tokens = 1500) {
  return request_of("And it came to pass in those days, that there went out a decree", max_tokens);
}

/// Short prompts, no two of which are equal.
inline std::vector<GenerateRequest> short_requests(std::size_t count, std::uint32_t max_tokens) {
  std::vector<GenerateRequest> all;
  for (std::size_t i = 0; i < count; ++i)
    all.push_back(request_of("In the year " + std::to_string(i) + " of the reign", max_tokens));
  return all;
}

/// Prompts of different numbers differ from the first token on.
inline GenerateRequest request_number(std::size_t number, std::uint32_t max_tokens = 8) {
  return request_of(std::to_string(number) + ": " + passage((number * 41) % 300, 600), max_tokens);
}

/// Reads `tokens` tokens more of the request, or to its end; nothing if its end has been read.
inline void read_on(Client& client, RequestId number, Progress& whole, std::size_t tokens) {
  const std::size_t goal = whole.tokens.size() + tokens;
  while (whole.tokens.size() < goal && whole.reason == Finish::none) {
    const auto woken = client.wait();
    EXPECT_TRUE(woken.has_value()) << woken.error().text;
    if (!woken) break;
    Progress news = *client.read(number);
    news.tokens.insert(news.tokens.begin(), whole.tokens.begin(), whole.tokens.end());
    news.text = whole.text + news.text;
    whole = std::move(news);
  }
}

/// The same of a request of which nothing has been read.
inline Progress read_until(Client& client, RequestId number, std::size_t tokens) {
  Progress whole;
  read_on(client, number, whole, tokens);
  return whole;
}

}  // namespace kvhive::testing
