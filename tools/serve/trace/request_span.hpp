#pragma once
// What became of one request for an answer, as a span: a line of JSON with OpenTelemetry's fields,
// and attributes named as vLLM names them where the meaning is the same.

#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "tools/serve/trace/span_file.hpp"
#include "tools/serve/trace/traceparent.hpp"

namespace kvhive {

class RequestSpan {
 public:
  using Time = std::chrono::system_clock::time_point;

  /// \param parent  none = it begins a trace of its own
  RequestSpan(SpanFile& file, std::optional<TraceParent> parent, Time start);

  /// Later values replace earlier ones.
  void set(const char* attribute, nlohmann::ordered_json value) {
    attributes_[attribute] = std::move(value);
  }
  /// The first call counts.
  void first_token();
  /// Writes it. Only the first call does. \param error  empty = it has ended well
  void end(const std::string& error);

 private:
  SpanFile& file_;
  const std::optional<TraceParent> parent_;
  const Time start_;
  std::optional<Time> first_token_;
  bool has_ended_ = false;
  nlohmann::ordered_json attributes_ = nlohmann::ordered_json::object();
};

}  // namespace kvhive
