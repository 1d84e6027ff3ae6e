#include "actors/scheduler/request_meter.hpp"

namespace kvhive {

void RequestMeter::admitted(const RequestTimes& times) {
  observe_time("request_queue_time_seconds", times.taken, times.admitted);
}

void RequestMeter::first_token(const RequestTimes& times) {
  observe_time("time_to_first_token_seconds", times.taken, times.first_token);
  observe_time("request_prefill_time_seconds", times.admitted, times.first_token);
}

void RequestMeter::finished(FinishReason reason, const RequestTimes& times,
                            const RequestStats& stats, std::uint32_t generated_tokens) {
  switch (reason) {
    case FinishReason::stop: count("finished_stop"); break;
    case FinishReason::length: count("finished_length"); break;
    case FinishReason::abort: count("finished_abort"); break;
    case FinishReason::room: return;
    case FinishReason::none:
    case FinishReason::error: count("finished_error"); break;
  }
  if (times.admitted == 0) return;
  const std::uint64_t end = now();
  observe_time("e2e_request_latency_seconds", times.taken, end);
  observe_time("request_inference_time_seconds", times.admitted, end);
  if (times.first_token != 0) observe_time("request_decode_time_seconds", times.first_token, end);
  observe("request_prompt_tokens", stats.prompt_tokens);
  observe("request_generation_tokens", generated_tokens);
  observe("request_num_preemptions", stats.preemptions);
}

}  // namespace kvhive
