#include "tools/serve/model/model_services.hpp"

#include <algorithm>
#include <utility>

namespace kvhive {

ModelServices::ModelServices(boost::asio::io_context& loop, std::vector<First> models,
                             const Hive::Limits& limits, const std::vector<std::string>& domains) {
  const Hive::Limits part = Hives::part_of(limits, models.size());
  for (First& each : models)
    models_.push_back(std::make_unique<ModelService>(loop, each.options, std::move(each.loaded),
                                                     part, domains, [this] { on_loaded(); }));
}

std::vector<ModelInUsePtr> ModelServices::servings() const {
  std::vector<ModelInUsePtr> all;
  for (const auto& model : models_) all.push_back(model->serving());
  return all;
}

std::vector<std::string> ModelServices::names() const {
  std::vector<std::string> all;
  for (const auto& model : models_) all.push_back(model->model().name);
  return all;
}

std::vector<std::string> ModelServices::adapters() const {
  std::vector<std::string> all;
  for (const auto& model : models_)
    all.insert(all.end(), model->model().adapters.begin(), model->model().adapters.end());
  return all;
}

std::optional<ApiError> ModelServices::trouble() const {
  std::optional<ApiError> last;
  for (const auto& model : models_)
    if (last = model->trouble(); !last) break;
  return last;
}

void ModelServices::look_from(std::size_t next, const Answer& answer) {
  ModelService& model = *models_[next];
  model.hives().look_for_daemon([this, next, &model, answer](const Result<void>& serves) {
    auto trouble = serves ? model.trouble() : std::optional(api_error(serves.error()));
    // Where there is no daemon, or it does not answer, the others need not wait for it in their
    // turn.
    const bool is_alone = serves || model.trouble() || serves.error().code == Hive::kNotAllowed;
    if (!trouble || !is_alone || next + 1 == models_.size()) return answer(std::move(trouble));
    look_from(next + 1, answer);
  });
}

void ModelServices::check() {
  for (const auto& model : models_) model->check();
}

std::map<std::string, Hive::OfAdapter> ModelServices::adapter_counts() const {
  std::map<std::string, Hive::OfAdapter> counts;
  for (const auto& model : models_) model->hives().count_adapters(counts);
  return counts;
}

std::size_t ModelServices::sum(std::size_t (Hives::*count)() const) const {
  std::size_t all = 0;
  for (const auto& model : models_) all += (model->hives().*count)();
  return all;
}

void ModelServices::stop_rendering() {
  for (const auto& model : models_) model->stop_rendering();
}

bool ModelServices::is_busy() const {
  return std::ranges::any_of(models_, [](const auto& model) { return model->is_busy(); });
}

std::size_t ModelServices::most_channels(const Hive::Limits& limits, std::size_t models,
                                         std::size_t domains) {
  return models * Hives::most_channels(Hives::part_of(limits, models), domains);
}

}  // namespace kvhive
