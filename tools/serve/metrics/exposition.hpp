#pragma once
// Writes statistics as text that Prometheus reads: exposition format 0.0.4.
// https://prometheus.io/docs/instrumenting/exposition_formats

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "pool/counters.hpp"

namespace kvhive {

/// Names and values, in the order in which they are shown.
using MetricLabels = std::vector<std::pair<std::string_view, std::string>>;

enum class MetricType : std::uint8_t { counter, gauge, histogram };

class Exposition {
 public:
  /// What follows is of this family. All samples of a family follow each other.
  /// \param name  whole: a counter's ends with "_total"
  void family(std::string_view name, MetricType type, std::string_view help);
  void sample(const MetricLabels& labels, std::uint64_t value);
  void sample(const MetricLabels& labels, double value);
  /// Cumulative buckets, the sum and the count; in seconds, if the histogram is of times.
  void histogram(const MetricLabels& labels, const HistogramInfo& info,
                 const HistogramValue& value);

  std::string take() { return std::exchange(text_, {}); }

 private:
  void line(std::string_view suffix, const MetricLabels& labels, std::string_view value);

  std::string text_, family_;
};

}  // namespace kvhive
