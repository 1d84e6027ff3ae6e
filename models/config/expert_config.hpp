#pragma once
// Reads from config.json which layers have experts, and how these are chosen.

#include "base/json_file.hpp"
#include "models/config/model_config.hpp"

namespace kvhive {

/// \param config  has its architecture and sizes already
void read_experts(const JsonFields& fields, FieldReader& reader, ModelConfig& config);

/// How config.json calls the number of experts.
const char* field_of_experts(ExpertRule rule);

}  // namespace kvhive
