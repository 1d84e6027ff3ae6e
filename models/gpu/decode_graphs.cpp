#include "models/gpu/decode_graphs.hpp"

#include <algorithm>

#include "base/log.hpp"

namespace kvhive {

void DecodeGraphs::forget_all() {
  for (const Known& known : known_)
    if (known.graph != nullptr) device_.destroy(known.graph);
  known_.clear();
}

DecodeGraphs::Known* DecodeGraphs::find(const DecodeShape& shape) {
  const auto found = std::ranges::find(known_, shape, &Known::shape);
  if (found == known_.end()) return nullptr;
  known_.splice(known_.begin(), known_, found);
  return &known_.front();
}

void DecodeGraphs::remember(const DecodeShape& shape) {
  if (known_.size() == most_) {
    if (known_.back().graph != nullptr) device_.destroy(known_.back().graph);
    known_.pop_back();
  }
  known_.push_front({shape});
}

Expected<DeviceGraph> DecodeGraphs::record(DeviceStream stream, const Queue& queue) {
  if (auto begun = device_.begin_capture(stream); !begun) return forward_error(begun);
  auto queued = queue();
  auto graph =
      device_.end_capture(stream);  // even after an error: the stream must leave recording mode
  if (queued) return graph;
  if (graph) device_.destroy(*graph);
  return forward_error(queued);
}

Expected<void> DecodeGraphs::run(const DecodeShape& shape, DeviceStream stream,
                                 const Queue& queue) {
  if (most_ == 0) return queue();
  Known* known = find(shape);
  if (known == nullptr) {
    remember(shape);
    return queue();
  }
  if (known->graph == nullptr) {
    auto graph = record(stream, queue);
    if (!graph) return run_without_graphs(graph.error(), queue);
    known->graph = *graph;
  }
  auto launched = device_.launch(known->graph, stream);
  return launched ? launched : run_without_graphs(launched.error(), queue);
}

/// Runs the step without a graph; nothing of it has been queued yet. Destroys all graphs, since the
/// error may be a lack of memory.
Expected<void> DecodeGraphs::run_without_graphs(const Error& error, const Queue& queue) {
  if (error.code == Errc::device_lost) return failure(error.code, error.text);
  spdlog::warn("decode steps run without CUDA graphs from now on: {}", error.text);
  forget_all();
  most_ = 0;
  return queue();
}

}  // namespace kvhive
