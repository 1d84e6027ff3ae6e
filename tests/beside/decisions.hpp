#pragma once
// What scheduler and block manager decide about a stream of requests, without a model. The same
// stream is given to vLLM's (vllm_scheduler.py).
//
// A stream is a list of JSON objects: the configuration, then for each step what comes:
//   {"add": [{"id": 7, "prompt": [[FAMILY, FROM, COUNT], ...], "max_tokens": 5, "priority": 1,
//             "salt": "a", "adapter": "b"}], "abort": [3]}
// A prompt is pieces of endless texts: text FAMILY, or what request -FAMILY generates. With
// "guesses" in the configuration, at most so many tokens are guessed behind each sampled one;
// which, and whether they are right, is a function of request and position, too.

#include <functional>
#include <nlohmann/json.hpp>
#include <span>

namespace kvhive::testing {

/// Calls `tell` for each step, the steps after the last one included, until no request is left:
///   {"work": [[id, computed, tokens, [[blocks of a group], ...]], ...], "preempted": [id, ...]}
void decide(const nlohmann::json& config, std::span<const nlohmann::json> steps,
            const std::function<void(const nlohmann::json&)>& tell);

}  // namespace kvhive::testing
