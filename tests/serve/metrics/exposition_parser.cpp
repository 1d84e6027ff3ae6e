#include "tests/serve/metrics/exposition_parser.hpp"

#include <cmath>
#include <limits>
#include <optional>
#include <regex>
#include <set>
#include <sstream>

namespace kvhive::testing {
namespace {

[[noreturn]] void fail(const std::string& line, const std::string& what) {
  throw std::runtime_error(what + ": " + line);
}

double number(const std::string& text, const std::string& line) {
  static const std::regex kNumber(R"([+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?|\+Inf|-Inf|NaN)");
  if (!std::regex_match(text, kNumber)) fail(line, "no number");
  if (text == "+Inf") return std::numeric_limits<double>::infinity();
  return std::stod(text);
}

/// Reads `{name="value",...}` from `at` on.
LabelSet read_labels(const std::string& line, std::size_t& at) {
  LabelSet labels;
  if (at >= line.size() || line[at] != '{') return labels;
  do {
    static const std::regex kName("[a-zA-Z_][a-zA-Z0-9_]*");
    const std::size_t end = line.find("=\"", ++at);
    if (end == std::string::npos) fail(line, "no label");
    const std::string name = line.substr(at, end - at);
    if (!std::regex_match(name, kName)) fail(line, "no label name");
    std::string value;
    for (at = end + 2; at < line.size() && line[at] != '"'; ++at) {
      if (line[at] != '\\') {
        value += line[at];
        continue;
      }
      if (++at >= line.size()) fail(line, "a backslash at the end");
      if (line[at] == 'n')
        value += '\n';
      else if (line[at] == '\\' || line[at] == '"')
        value += line[at];
      else
        fail(line, "no escape sequence");
    }
    if (at >= line.size()) fail(line, "a label without an end");
    if (!labels.emplace(name, value).second) fail(line, "a label twice");
    ++at;
  } while (at < line.size() && line[at] == ',');
  if (at >= line.size() || line[at++] != '}') fail(line, "labels without an end");
  return labels;
}

MetricFamily::Sample read_sample(const std::string& line) {
  static const std::regex kName("[a-zA-Z_:][a-zA-Z0-9_:]*");
  MetricFamily::Sample sample;
  std::size_t at = std::min(line.find_first_of("{ "), line.size());
  sample.name = line.substr(0, at);
  if (!std::regex_match(sample.name, kName)) fail(line, "no metric name");
  sample.labels = read_labels(line, at);
  if (at >= line.size() || line[at] != ' ') fail(line, "no space before the value");
  sample.value = number(line.substr(at + 1), line);
  return sample;
}

/// Buckets ascend, are cumulative, and end with one that has all.
void check_histogram(const std::string& name, const MetricFamily& family) {
  struct Seen {
    double edge = -std::numeric_limits<double>::infinity(), buckets = 0;
    std::optional<double> sum, count;
  };
  std::map<LabelSet, Seen> all;
  for (const auto& sample : family.samples) {
    LabelSet labels = sample.labels;
    const auto le = labels.extract("le");
    Seen& seen = all[labels];
    if (sample.name == name + "_bucket") {
      if (!le) fail(sample.name, "no le");
      const double edge = number(le.mapped(), le.mapped());
      if (!(edge > seen.edge)) fail(sample.name, "edges do not ascend");
      if (sample.value < seen.buckets) fail(sample.name, "buckets are not cumulative");
      if (seen.sum || seen.count) fail(sample.name, "a bucket behind the sum");
      seen.edge = edge;
      seen.buckets = sample.value;
    } else if (sample.name == name + "_sum") {
      seen.sum = sample.value;
    } else {
      seen.count = sample.value;
    }
  }
  for (const auto& [labels, seen] : all) {
    if (!std::isinf(seen.edge) || seen.edge < 0) fail(name, "no bucket +Inf");
    if (!seen.sum || !seen.count) fail(name, "no sum or no count");
    if (*seen.count != seen.buckets) fail(name, "the count is not that of +Inf");
  }
}

bool may_belong(const std::string& sample, const std::string& family, const std::string& type) {
  if (type != "histogram") return sample == family;
  return sample == family + "_bucket" || sample == family + "_sum" || sample == family + "_count";
}

bool has_labels(const LabelSet& all, const LabelSet& wanted) {
  for (const auto& [name, value] : wanted)
    if (const auto found = all.find(name); found == all.end() || found->second != value)
      return false;
  return true;
}

std::string key_of(const MetricFamily::Sample& sample) {
  std::string key = sample.name;
  for (const auto& [name, value] : sample.labels) key += " " + name + "=" + value;
  return key;
}

}  // namespace

MetricsText::MetricsText(const std::string& text) {
  if (!text.empty() && text.back() != '\n') fail(text, "no end of line at the end");
  static const std::regex kHelp("# HELP ([a-zA-Z_:][a-zA-Z0-9_:]*) (.*)");
  static const std::regex kType("# TYPE ([a-zA-Z_:][a-zA-Z0-9_:]*) (counter|gauge|histogram)");
  std::set<std::string> seen;
  std::string open, help_of;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::smatch found;
    if (std::regex_match(line, found, kHelp)) {
      help_of = found[1];
      if (!families_.emplace(help_of, MetricFamily{"", found[2], {}}).second)
        fail(line, "a family twice");
    } else if (std::regex_match(line, found, kType)) {
      open = found[1];
      if (open != help_of) fail(line, "a type that is not of the help before it");
      if (!families_.at(open).type.empty()) fail(line, "a type twice");
      families_.at(open).type = found[2];
      if (found[2] == "counter" && !open.ends_with("_total"))
        fail(line, "a counter without _total");
    } else {
      auto sample = read_sample(line);
      if (open.empty() || open != help_of ||
          !may_belong(sample.name, open, families_.at(open).type))
        fail(line, "a sample outside its family");
      if (!seen.insert(key_of(sample)).second) fail(line, "a series twice");
      families_.at(open).samples.push_back(std::move(sample));
    }
  }
  for (const auto& [name, family] : families_) {
    if (family.type.empty()) fail(name, "no type");
    if (family.type == "histogram") check_histogram(name, family);
  }
}

double MetricsText::sum(const std::string& name, const LabelSet& labels) const {
  double sum = 0;
  for (const auto& [family_name, family] : families_)
    for (const auto& sample : family.samples)
      if (sample.name == name && has_labels(sample.labels, labels)) sum += sample.value;
  return sum;
}

std::size_t MetricsText::count(const std::string& name, const LabelSet& labels) const {
  std::size_t count = 0;
  for (const auto& [family_name, family] : families_)
    for (const auto& sample : family.samples)
      count += sample.name == name && has_labels(sample.labels, labels);
  return count;
}

std::vector<std::string> MetricsText::names() const {
  std::vector<std::string> names;
  for (const auto& [name, family] : families_) {
    if (family.type != "histogram") {
      names.push_back(name);
      continue;
    }
    for (const char* part : {"_bucket", "_sum", "_count"}) names.push_back(name + part);
  }
  return names;
}

std::map<std::string, double> MetricsText::growing() const {
  std::map<std::string, double> values;
  for (const auto& [name, family] : families_)
    if (family.type != "gauge")
      for (const auto& sample : family.samples) values[key_of(sample)] = sample.value;
  return values;
}

}  // namespace kvhive::testing
