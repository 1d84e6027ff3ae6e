#pragma once
// An OutputSink that stores all calls.

#include <memory>
#include <string>
#include <vector>

#include "base/check.hpp"
#include "ipc/channel/output_sink.hpp"

namespace kvhive::testing {

/// The output of one request. It outlives the engine that serves the request, as a channel does.
struct Recording {
  std::vector<TokenId> tokens;
  std::string text;
  std::uint32_t admissions = 0;
  std::uint32_t flushes = 0;
  FinishReason reason = FinishReason::none;
  Error error;
  RequestStats stats;
  std::size_t text_bytes = 0;
  bool is_running = false;

  bool is_finished() const { return reason != FinishReason::none; }
};

class RecordingSink : public OutputSink {
 public:
  /// \param journaled  `recording` already has this many tokens, from an engine that died
  explicit RecordingSink(std::shared_ptr<Recording> recording, std::size_t journaled = 0)
      : recording_(std::move(recording)), journaled_(journaled) {}

  void set_running(bool is_running) override { recording_->is_running = is_running; }
  void admitted(const RequestStats& stats) override {
    KV_CHECK(!recording_->is_finished());
    ++recording_->admissions;
    recording_->stats = stats;
  }
  void token(const GeneratedToken& token, std::string_view text) override {
    KV_CHECK(!recording_->is_finished());
    if (++seen_ > journaled_) recording_->tokens.push_back(token.token);
    KV_CHECK(recording_->tokens.at(seen_ - 1) == token.token, seen_);
    recording_->text += text;
  }
  void finished(FinishReason reason, const Error& error, const RequestStats& stats,
                std::size_t text_bytes) override {
    KV_CHECK(!recording_->is_finished() && reason != FinishReason::none);
    recording_->reason = reason;
    recording_->error = error;
    recording_->stats = stats;
    recording_->text_bytes = text_bytes;
  }
  void flush() override { ++recording_->flushes; }

 private:
  std::shared_ptr<Recording> recording_;
  std::size_t journaled_;
  std::size_t seen_ = 0;
};

}  // namespace kvhive::testing
