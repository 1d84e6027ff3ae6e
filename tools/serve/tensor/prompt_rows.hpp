#pragma once
// A prompt that is given as embeddings: one row of numbers for each place. Over HTTP it comes as
// the bytes of torch.save(tensor), in base64, as vLLM takes it (renderers/embed_utils.py).

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/expected.hpp"

namespace kvhive {

struct PromptRows {
  std::uint32_t width = 0;
  std::vector<float> values;  ///< row by row
  std::size_t count() const { return values.size() / width; }
};

struct RowBounds {
  std::size_t rows = 0;     ///< the first number of rows that is too large
  std::uint32_t width = 0;  ///< the model's hidden_size; 0 = not known here
};

/// Takes a dense tensor of float32, float16 or bfloat16, [rows, width] or [1, rows, width]. No
/// memory is taken but for what the bytes themselves have, converted to float32. An error's text
/// goes on behind the name of what was read.
[[nodiscard]] Expected<PromptRows> read_torch_tensor(std::span<const std::byte> archive,
                                                     const RowBounds& bounds);
/// The same, from base64.
[[nodiscard]] Expected<PromptRows> read_prompt_rows(std::string_view base64,
                                                    const RowBounds& bounds);

}  // namespace kvhive
