#include "tools/serve/model/model_in_use.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tools/serve/openai/answer_request.hpp"

namespace kvhive {

tl::expected<ModelInUsePtr, ApiError> choose(const std::vector<ModelInUsePtr>& all,
                                             const nlohmann::json& request) {
  const auto named = request.find("model");
  if (all.size() == 1 || named == request.end() || !named->is_string()) return all.front();
  const auto& name = named->get_ref<const std::string&>();
  std::vector<std::string> known;
  for (const ModelInUsePtr& each : all) {
    const std::vector<std::string> names = names_of(each->model());
    if (std::ranges::find(names, name) != names.end()) return each;
    known.insert(known.end(), names.begin(), names.end());
  }
  return tl::unexpected(no_such_model(name, known));
}

}  // namespace kvhive
