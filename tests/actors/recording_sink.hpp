#pragma once
// An OutputSink that stores all calls.

#include <memory>
#include <string>
#include <vector>

#include <algorithm>

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
  std::vector<float> logprobs;            ///< of the tokens
  std::vector<std::vector<Sampled>> top;  ///< of each, the likeliest in its place
  std::vector<PromptToken> prompt;
  Error error;
  RequestStats stats;
  RequestTimes times;
  std::size_t text_bytes = 0;
  RoomStatus room;
  bool is_lost = false;  ///< as if another engine had taken the request while it waited

  bool is_finished() const { return reason != FinishReason::none; }
};

class RecordingSink : public OutputSink {
 public:
  /// \param journaled  `recording` already has this many tokens, from an engine that died
  explicit RecordingSink(std::shared_ptr<Recording> recording, std::size_t journaled = 0)
      : recording_(std::move(recording)), journaled_(journaled) {}

  bool read() override { return work(); }
  void wait() override { set_waiting(); }
  bool start() override { return work(); }
  void preempted() override { is_kept_ = true; }
  void note(const RequestTimes& times) override { recording_->times = times; }
  void admitted(const RequestStats& stats) override {
    KV_CHECK(!recording_->is_finished());
    ++recording_->admissions;
    recording_->stats = stats;
  }
  void prompt(std::size_t first, std::span<const PromptToken> tokens) override {
    KV_CHECK(recording_->tokens.empty() && first <= recording_->prompt.size(), first);
    recording_->prompt.resize(std::max(recording_->prompt.size(), first + tokens.size()));
    std::ranges::copy(tokens, recording_->prompt.begin() + static_cast<std::ptrdiff_t>(first));
  }
  void token(const GeneratedToken& token, std::string_view text) override {
    KV_CHECK(!recording_->is_finished());
    if (++seen_ > journaled_) {
      recording_->tokens.push_back(token.token);
      recording_->logprobs.push_back(token.logprob);
      recording_->top.push_back(token.top);
    }
    KV_CHECK(recording_->tokens.at(seen_ - 1) == token.token, seen_);
    recording_->text += text;
  }
  void room(const RoomStatus& room) override { recording_->room = room; }
  bool finished(FinishReason reason, const Error& error, const RequestStats& stats,
                std::size_t text_bytes) override {
    KV_CHECK(!recording_->is_finished() && reason != FinishReason::none);
    if (!is_worked_on_ && recording_->is_lost) return false;
    recording_->reason = reason;
    recording_->error = error;
    recording_->stats = stats;
    recording_->text_bytes = text_bytes;
    return true;
  }
  void flush() override { ++recording_->flushes; }

 private:
  bool work() {
    is_worked_on_ = is_kept_ || !recording_->is_lost;
    return is_worked_on_;
  }
  void set_waiting() {
    KV_CHECK(is_worked_on_);
    is_worked_on_ = false;
  }

  bool is_worked_on_ = false;
  bool is_kept_ = false;  ///< preempted: no other engine can take it
  std::shared_ptr<Recording> recording_;
  std::size_t journaled_;
  std::size_t seen_ = 0;
};

}  // namespace kvhive::testing
