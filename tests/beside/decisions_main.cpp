// Prints what scheduler and block manager decide about the stream in a file, a line of JSON a step.

#include <fstream>
#include <iostream>

#include "base/check.hpp"
#include "tests/beside/decisions.hpp"

int main(int argc, char** argv) {
  using nlohmann::json;
  KV_CHECK(argc == 2, argc);
  std::ifstream file(argv[1]);
  std::vector<json> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(json::parse(line));
  kvhive::testing::decide(lines.at(0), std::span(lines).subspan(1),
                          [](const json& told) { std::cout << told << '\n'; });
}
