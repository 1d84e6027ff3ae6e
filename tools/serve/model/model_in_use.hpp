#pragma once
// A model as requests find it: what was loaded of it, and what renders its template. Whoever
// answers a request keeps it, so one request sees one model, whatever the daemon serves meanwhile.

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <vector>

#include "tools/serve/chat/template_renderer.hpp"
#include "tools/serve/model/model_follower.hpp"

namespace kvhive {

class ModelService;

struct ModelInUse {
  ModelService& host;  ///< of the loop
  ModelFollower::Model loaded;
  std::optional<TemplateRenderer> renderer{};  ///< none = no template, or another model has come
  const ServedModel& model() const { return loaded->model; }
};
using ModelInUsePtr = std::shared_ptr<ModelInUse>;

/// The one that the request's `model` names, as the model's name or as that of one of its adapters;
/// the first, if the request names none. Of a single one, whatever it names: whoever reads the
/// request knows that model's names. From any thread.
/// \param all  one at least
tl::expected<ModelInUsePtr, ApiError> choose(const std::vector<ModelInUsePtr>& all,
                                             const nlohmann::json& request);

}  // namespace kvhive
