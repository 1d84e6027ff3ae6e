#pragma once
// Of a model that takes images, too, what config.json says about text.

#include <nlohmann/json.hpp>
#include <string>

#include "base/expected.hpp"

namespace kvhive {

/// The object as it is, or text_config of a multimodal architecture (kMultimodalArchitectures) with
/// the text's architecture and with what the object around it says of both: as transformers, that
/// counts more for the type of weights and the special tokens, and else where text_config is
/// silent.
///
/// \param where  the beginning of error texts
[[nodiscard]] Expected<nlohmann::json> text_part(const nlohmann::json& config,
                                                 const std::string& where);

}  // namespace kvhive
