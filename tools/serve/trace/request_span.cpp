#include "tools/serve/trace/request_span.hpp"

#include <random>
#include <utility>

#include <fmt/format.h>

namespace kvhive {
namespace {

std::uint64_t random_bits() {
  static thread_local std::random_device device;
  const std::uint64_t bits = std::uint64_t{device()} << 32 | device();
  return bits != 0 ? bits : 1;  // an id is never zero
}

std::int64_t nanoseconds(RequestSpan::Time time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

}  // namespace

RequestSpan::RequestSpan(SpanFile& file, std::optional<TraceParent> parent, Time start)
    : file_(file), parent_(std::move(parent)), start_(start) {}

void RequestSpan::first_token() {
  if (!first_token_) first_token_ = std::chrono::system_clock::now();
}

void RequestSpan::end(const std::string& error) {
  if (std::exchange(has_ended_, true)) return;
  const Time now = std::chrono::system_clock::now();
  const auto since_start = [&](Time time) {
    return std::chrono::duration<double>(time - start_).count();
  };
  if (first_token_) set("gen_ai.latency.time_to_first_token", since_start(*first_token_));
  set("gen_ai.latency.e2e", since_start(now));
  nlohmann::ordered_json status = {{"code", error.empty() ? "OK" : "ERROR"}};
  if (!error.empty()) status["message"] = error;
  const nlohmann::ordered_json span = {
      {"trace_id",
       parent_ ? parent_->trace : fmt::format("{:016x}{:016x}", random_bits(), random_bits())},
      {"span_id", fmt::format("{:016x}", random_bits())},
      {"parent_span_id",
       parent_ ? nlohmann::ordered_json(parent_->parent) : nlohmann::ordered_json()},
      {"name", "llm_request"},
      {"kind", "SERVER"},
      {"start_time_unix_nano", nanoseconds(start_)},
      {"end_time_unix_nano", nanoseconds(now)},
      {"status", std::move(status)},
      {"attributes", attributes_}};
  file_.write(span.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

}  // namespace kvhive
