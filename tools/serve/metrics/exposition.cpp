#include "tools/serve/metrics/exposition.hpp"

#include <fmt/format.h>

namespace kvhive {
namespace {

std::string_view to_string(MetricType type) {
  switch (type) {
    case MetricType::counter: return "counter";
    case MetricType::gauge: return "gauge";
    case MetricType::histogram: break;
  }
  return "histogram";
}

enum class Quotes : std::uint8_t { left, escaped };

void append_escaped(std::string& to, std::string_view text, Quotes quotes) {
  for (const char letter : text) {
    if (letter == '\n') {
      to += "\\n";
      continue;
    }
    if (letter == '\\' || (letter == '"' && quotes == Quotes::escaped)) to += '\\';
    to += letter;
  }
}

/// How many of the unit are one of what is shown.
std::uint64_t per_second(HistogramUnit unit) {
  switch (unit) {
    case HistogramUnit::nanoseconds: return 1'000'000'000;
    case HistogramUnit::microseconds: return 1'000'000;
    default: return 1;
  }
}

/// As Python's client writes numbers in `le`, so that labels are equal to vLLM's: "0.001", "1.0".
std::string edge_text(const HistogramInfo& info, std::uint64_t edge) {
  const double value = static_cast<double>(edge) / static_cast<double>(per_second(info.unit));
  const std::string text = fmt::format("{}", value);
  return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}

/// A double would be exact for 104 days of nanoseconds only.
std::string sum_text(const HistogramInfo& info, std::uint64_t sum) {
  const std::uint64_t unit = per_second(info.unit);
  if (unit == 1) return std::to_string(sum);
  return fmt::format("{}.{:0{}}", sum / unit, sum % unit, unit == 1'000'000 ? 6 : 9);
}

}  // namespace

void Exposition::family(std::string_view name, MetricType type, std::string_view help) {
  family_ = name;
  text_.append("# HELP ").append(name).append(" ");
  append_escaped(text_, help, Quotes::left);
  text_.append("\n# TYPE ").append(name).append(" ").append(to_string(type)).append("\n");
}

void Exposition::sample(const MetricLabels& labels, std::uint64_t value) {
  line("", labels, std::to_string(value));
}

void Exposition::sample(const MetricLabels& labels, double value) {
  line("", labels, fmt::format("{}", value));
}

void Exposition::histogram(const MetricLabels& labels, const HistogramInfo& info,
                           const HistogramValue& value) {
  MetricLabels of_bucket = labels;
  of_bucket.emplace_back("le", "");
  std::uint64_t so_far = 0;
  for (std::size_t i = 0; i < value.buckets.size(); ++i) {
    so_far += value.buckets[i];
    of_bucket.back().second = i < info.edges.size() ? edge_text(info, info.edges[i]) : "+Inf";
    line("_bucket", of_bucket, std::to_string(so_far));
  }
  line("_sum", labels, sum_text(info, value.sum));
  line("_count", labels, std::to_string(so_far));
}

void Exposition::line(std::string_view suffix, const MetricLabels& labels, std::string_view value) {
  text_.append(family_).append(suffix);
  char before = '{';
  for (const auto& [name, text] : labels) {
    text_ += std::exchange(before, ',');
    text_.append(name).append("=\"");
    append_escaped(text_, text, Quotes::escaped);
    text_ += '"';
  }
  if (!labels.empty()) text_ += '}';
  text_.append(" ").append(value).append("\n");
}

}  // namespace kvhive
