#pragma once
// What a tensor of scales says which of a matrix's weights share one.

#include <cstdint>
#include <optional>
#include <span>

#include "models/quantization/coded_matrix.hpp"
#include "models/quantization/quantization.hpp"

namespace kvhive {

/// The blocks that a tensor of scales of this shape has for a matrix [N, K]: with blocks in the
/// config those; with groups [N, groups of a row]; else [], [1] or [1, 1] is one scale, [N] or
/// [N, 1] one for each row, where the config says no other. Without scales yet. Nothing if the
/// shape does not fit.
std::optional<ScaleGrid> scale_grid(const Quantization& how, std::int32_t N, std::int32_t K,
                                    std::span<const std::int64_t> shape);

}  // namespace kvhive
