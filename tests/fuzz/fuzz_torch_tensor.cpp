// A prompt given as embeddings: an archive of torch.save(), or the pickle in it alone, since no
// fuzzer finds the archive's checksums. What is accepted is no larger than what came.

#include "base/check.hpp"
#include "tests/fuzz/fuzz_input.hpp"
#include "tools/serve/tensor/base64.hpp"
#include "tools/serve/tensor/prompt_rows.hpp"
#include "tools/serve/tensor/torch_pickle.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvhive;
  constexpr RowBounds kBounds{4096, 0};
  const std::string bytes = testing::FuzzInput(data, size).rest();
  if (const auto rows = read_torch_tensor(std::as_bytes(std::span(bytes)), kBounds)) {
    KV_CHECK(rows->width != 0 && rows->count() != 0 && rows->count() < kBounds.rows);
    KV_CHECK(rows->count() * rows->width == rows->values.size());
    KV_CHECK(rows->values.size() * 2 <= bytes.size(), rows->values.size(), bytes.size());
  }
  if (const auto tensor = read_torch_pickle(bytes)) KV_CHECK(tensor->storage.size() < bytes.size());
  if (const auto decoded = decode_base64(bytes)) KV_CHECK(decoded->size() <= bytes.size());
  return 0;
}
