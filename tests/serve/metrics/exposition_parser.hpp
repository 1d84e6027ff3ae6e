#pragma once
// Reads Prometheus' text format 0.0.4 strictly: what a lenient reader would forgive is an error.

#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace kvhive::testing {

using LabelSet = std::map<std::string, std::string>;

struct MetricFamily {
  std::string type, help;
  struct Sample {
    std::string name;
    LabelSet labels;
    double value = 0;
  };
  std::vector<Sample> samples;
};

class MetricsText {
 public:
  /// Throws std::runtime_error with the line and what is wrong with it.
  explicit MetricsText(const std::string& text);

  const std::map<std::string, MetricFamily>& families() const { return families_; }
  bool has(const std::string& family) const { return families_.contains(family); }
  /// The sum of the samples of this name that have these labels, and perhaps others; 0 = no such
  /// sample.
  double sum(const std::string& name, const LabelSet& labels = {}) const;
  std::size_t count(const std::string& name, const LabelSet& labels = {}) const;
  /// Every name that a query may have: of families, and of a histogram's parts.
  std::vector<std::string> names() const;
  /// All samples of counters and histograms, by name and labels: they never fall while the process
  /// that counts lives.
  std::map<std::string, double> growing() const;

 private:
  std::map<std::string, MetricFamily> families_;
};

}  // namespace kvhive::testing
