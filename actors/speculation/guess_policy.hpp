#pragma once
// How many guesses pay. A step takes a + b * rows: where reading the weights takes most of it, a
// further row costs little; in a full batch it costs nearly what a token costs. A guess pays if it
// is right more often than its row's share of the step's time per token:
//
//   b < p * (a + b * rows) / rows
//
// Both are measured: a and b by the engine's steps, p by each request's guesses.

#include <cstddef>

namespace kvhive {

/// How often the guesses at one request are right. Old ones are forgotten, and while none are made,
/// the rate rises slowly, so that guessing is tried again.
class HitRate {
 public:
  /// `right` guesses in a row were right, then one was wrong, unless all `guessed` were right.
  void learn(std::size_t guessed, std::size_t right);
  /// A token for which nothing was guessed.
  void rest();
  double value() const { return value_; }

 private:
  static constexpr double kAtFirst = 0.7;
  double value_ = kAtFirst;
};

class GuessPolicy {
 public:
  /// A step that computed so many tokens took so long; 0 = not measured.
  void learn(std::size_t tokens, double seconds);
  /// How many of `most` guesses to add to a step of `rows` tokens. All, as long as little is known.
  std::size_t worth(double hit_rate, std::size_t rows, std::size_t most) const;
  /// The part of a step of so many tokens that grows with them, 0 to 1.
  double share_of_rows(std::size_t rows) const;

 private:
  /// Sums over steps, of which older ones count less.
  double steps_ = 0, tokens_ = 0, seconds_ = 0, tokens_squared_ = 0, tokens_by_seconds_ = 0;
};

}  // namespace kvhive
