#include "models/decode_graphs.hpp"

#include <algorithm>

#include "config/log.hpp"

namespace kvhive {

DecodeGraphs::~DecodeGraphs() {
  for (const Known& known : known_)
    if (known.graph != nullptr) device_.destroy(known.graph);
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

Expected<DeviceGraph> DecodeGraphs::record(DeviceStream stream,
                                           const std::function<Expected<void>()>& queue) {
  if (auto begun = device_.begin_capture(stream); !begun) return forward_error(begun);
  auto queued = queue();
  auto graph = device_.end_capture(stream);  // in any case: the stream is to work again
  if (queued) return graph;
  if (graph) device_.destroy(*graph);
  return forward_error(queued);
}

Expected<void> DecodeGraphs::run(const DecodeShape& shape, DeviceStream stream,
                                 const std::function<Expected<void>()>& queue) {
  if (most_ == 0) return queue();
  Known* known = find(shape);
  if (known == nullptr) {
    remember(shape);
    return queue();
  }
  if (known->graph == nullptr) {
    auto graph = record(stream, queue);
    if (!graph && graph.error().code == Errc::device_lost) return forward_error(graph);
    if (!graph) {
      spdlog::warn("no more CUDA graphs: {}", graph.error().text);
      most_ = 0;
      return queue();
    }
    known->graph = *graph;
  }
  return device_.launch(known->graph, stream);
}

}  // namespace kvhive
