#pragma once
// What both sides of the comparison do: the same commands from standard input, one line each, with
// one line of answer.
//
//   about                        what the side says of itself
//   prompt TOKENS ROOM           a prompt of TOKENS tokens, in a cache with ROOM for so many
//   decode COUNT DEPTH TOKENS    TOKENS steps of COUNT sequences that have DEPTH tokens already
//   logits ID ID ...             the logits behind the last of these tokens
//
// prompt and decode answer with seconds of wall time and of the process' processor time. What
// precedes the steps of decode is not in them.

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

namespace kvhive::beside {

/// Tokens that both sides compute; which ones does not matter for the time.
inline std::int32_t some_token(std::int32_t at, std::int32_t vocab) {
  return static_cast<std::int32_t>((at * 7919LL + 13) % vocab);
}

template <class Work>
void time_and_print(Work&& work) {
  const auto processor_seconds = [] {
    timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  };
  const double processor = processor_seconds();
  const auto start = std::chrono::steady_clock::now();
  work();
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - start;
  std::printf("%.6f %.6f\n", wall.count(), processor_seconds() - processor);
}

/// Side has about(), prompt(tokens, room), prepare(count, depth, tokens), step(index) and
/// logits(ids). Returns when standard input ends.
template <class Side>
void answer_commands(Side& side) {
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string command;
    words >> command;
    std::vector<std::int32_t> numbers;
    for (std::int32_t number; words >> number;) numbers.push_back(number);
    if (command == "about") {
      std::printf("%s\n", side.about().c_str());
    } else if (command == "prompt" && numbers.size() == 2) {
      side.make_room(numbers[1]);
      time_and_print([&] { side.prompt(numbers[0]); });
    } else if (command == "decode" && numbers.size() == 3) {
      side.prepare(numbers[0], numbers[1], numbers[2]);
      time_and_print([&] {
        for (std::int32_t i = 0; i < numbers[2]; ++i) side.step(i);
      });
    } else if (command == "logits" && !numbers.empty()) {
      side.make_room(static_cast<std::int32_t>(numbers.size()));
      for (const float logit : side.logits(numbers)) std::printf("%.9g ", logit);
      std::printf("\n");
    } else {
      std::printf("unknown command: %s\n", line.c_str());
    }
    std::fflush(stdout);
  }
}

}  // namespace kvhive::beside
