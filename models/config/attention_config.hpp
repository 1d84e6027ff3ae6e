#pragma once
// Reads from config.json what each layer attends to: everything, a window, or its own chunk.

#include "base/json_file.hpp"
#include "models/config/model_config.hpp"

namespace kvhive {

/// \param config  has its architecture and sizes already
void read_attention(const JsonFields& fields, FieldReader& reader, ModelConfig& config);

}  // namespace kvhive
