#pragma once
// Logits from an independent float64 program (tests/models/golden), and the error of other logits.

#include <bit>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/ids.hpp"
#include "base/json_file.hpp"

namespace kvhive {

inline const std::filesystem::path kGolden = KVHIVE_GOLDEN_DIR;

struct Golden {
  std::vector<TokenId> tokens;
  std::vector<double> logits;   ///< [tokens, vocab]
  std::vector<TokenId> greedy;  ///< what the most likely tokens continue the prompt with
};

/// Logits that make_golden.py wrote, [tokens, vocab].
inline std::vector<double> read_logits(const std::filesystem::path& file) {
  std::vector<double> logits;
  const auto bytes = read_text_file(file).value();
  for (std::size_t at = 0; at < bytes.size(); at += 8) {
    std::uint64_t bits = 0;
    for (std::size_t i = 8; i-- > 0;) bits = bits << 8 | static_cast<unsigned char>(bytes[at + i]);
    logits.push_back(std::bit_cast<double>(bits));
  }
  return logits;
}

inline Golden read_golden(const std::string& model) {
  Golden golden;
  const auto json = read_json_object(kGolden / model / "golden.json").value();
  golden.tokens = json["tokens"].get<std::vector<TokenId>>();
  golden.greedy = json["greedy"].get<std::vector<TokenId>>();
  golden.logits = read_logits(kGolden / model / "golden.f64");
  return golden;
}

/// Root mean square of the error divided by that of the true values.
template <class Truth>
double relative_error(const std::vector<float>& logits, const Truth& truth) {
  double error = 0, size = 0;
  for (std::size_t i = 0; i < truth.size(); ++i) {
    error += std::pow(logits[i] - truth[i], 2);
    size += truth[i] * truth[i];
  }
  return std::sqrt(error / size);
}

}  // namespace kvhive
