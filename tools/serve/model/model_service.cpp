#include "tools/serve/model/model_service.hpp"

#include <utility>

namespace kvhive {
namespace {

Hive::Identify identify_by(const ModelSource& source) {
  if (!source.asks_daemon()) return {};
  return [&source]() -> Result<Hive::ModelId> {
    const auto told = source.ask();
    if (told) return told->id;
    const Errc code = told.error().code;
    const bool says_it = code == Errc::not_running || code == Errc::not_found;
    return ClientError{
        ErrorCode::not_running,
        (says_it ? "" : "the daemon does not tell what it serves: ") + told.error().text};
  };
}

}  // namespace

ModelService::ModelService(boost::asio::io_context& loop, const ModelOptions& options,
                           LoadedModel first, const Hive::Limits& limits,
                           const std::vector<std::string>& domains, std::function<void()> on_loaded)
    : loop_(loop),
      source_(options),
      follower_(loop, source_, std::move(first)),
      hives_(loop, {options.socket, options.hosted}, limits, domains, identify_by(source_),
             [this](Hive::ModelId id) { follower_.on_opened(id); }) {
  serve(follower_.model());
  follower_.on_loaded = [this, tell = std::move(on_loaded)](const ModelFollower::Model& loaded) {
    serve(loaded);
    tell();
  };
}

/// Jobs that wait for the renderer hold its owner (ModelInUse), so it is ended here.
ModelService::~ModelService() { stop_rendering(); }

/// Requests that were made for the model before are refused where they have not got to an engine:
/// its renderer tells its own so, and ends.
void ModelService::serve(const ModelFollower::Model& model) {
  if (serving_) stop_rendering();
  serving_ = std::make_shared<ModelInUse>(ModelInUse{*this, model});
  if (model->chat) serving_->renderer.emplace(loop_, *model->chat);
}

std::optional<ApiError> ModelService::trouble() const {
  if (follower_.model()) return std::nullopt;
  return follower_.trouble();
}

}  // namespace kvhive
