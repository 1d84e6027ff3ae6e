#include "tools/serve/tensor/prompt_rows.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "tools/serve/tensor/base64.hpp"
#include "tools/serve/tensor/torch_archive.hpp"
#include "tools/serve/tensor/torch_pickle.hpp"

namespace kvhive {
namespace {

constexpr std::size_t kMostOfSmallEntries = 1 << 16;

std::string shape_of(const TorchTensor& tensor) {
  std::string text = "[";
  for (std::size_t i = 0; i < std::min<std::size_t>(tensor.sizes.size(), 8); ++i)
    text += (i != 0 ? ", " : "") + std::to_string(tensor.sizes[i]);
  return text + (tensor.sizes.size() > 8 ? ", ...]" : "]");
}

/// Without the first of three sizes, if that is 1.
Expected<TorchTensor> squeezed(TorchTensor tensor) {
  if (tensor.sizes.size() == 3 && tensor.sizes[0] == 1 && tensor.strides.size() == 3) {
    tensor.sizes.erase(tensor.sizes.begin());
    tensor.strides.erase(tensor.strides.begin());
  }
  if (tensor.sizes.size() == 2 && tensor.strides.size() == 2) return tensor;
  return failure(Errc::bad_argument,
                 "has the shape " + shape_of(tensor) +
                     "; a prompt is a tensor [tokens, hidden_size], several are a list of such");
}

Expected<void> check_bounds(const TorchTensor& tensor, const RowBounds& bounds) {
  const std::uint64_t rows = tensor.sizes[0], width = tensor.sizes[1];
  if (rows == 0 || width == 0)
    return failure(Errc::bad_argument,
                   "has the shape " + shape_of(tensor) + ": it is empty; give a row at least");
  if (width > std::numeric_limits<std::uint32_t>::max() ||
      (bounds.width != 0 && width != bounds.width))
    return failure(Errc::bad_argument,
                   "has rows of " + std::to_string(width) + " values; the model's hidden_size is " +
                       (bounds.width != 0 ? std::to_string(bounds.width) : "less"));
  if (rows >= bounds.rows)
    return failure(Errc::never_fits, "has " + std::to_string(rows) + " rows; a request may have " +
                                         std::to_string(bounds.rows) +
                                         " tokens, at least one of output included; shorten it");
  return {};
}

/// Every value lies in the storage, and none is there for several: so what is made of a tensor is
/// no larger than what came.
Expected<void> check_places(const TorchTensor& tensor) {
  std::uint64_t values = 0, last = tensor.offset;
  bool is_too_large = __builtin_mul_overflow(tensor.sizes[0], tensor.sizes[1], &values);
  for (std::size_t i = 0; i < 2; ++i) {
    std::uint64_t way = 0;
    is_too_large |= __builtin_mul_overflow(tensor.sizes[i] - 1, tensor.strides[i], &way);
    is_too_large |= __builtin_add_overflow(last, way, &last);
  }
  if (is_too_large || last >= tensor.storage_size)
    return failure(Errc::bad_format,
                   "has the shape " + shape_of(tensor) + ", which reaches beyond its storage of " +
                       std::to_string(tensor.storage_size) +
                       " values; send what torch.save() writes, whole and unchanged");
  if (values > tensor.storage_size)
    return failure(Errc::bad_argument, "has the shape " + shape_of(tensor) + " and a storage of " +
                                           std::to_string(tensor.storage_size) +
                                           " values: it was expanded; send its .contiguous()");
  return {};
}

Expected<void> check_byte_order(const TorchArchive& archive) {
  static const std::string kName = "byteorder";
  if (!archive.has(kName)) return {};  // torch before 2.1 says nothing
  const auto order = archive.read(kName, kMostOfSmallEntries);
  if (!order) return forward_error(order);
  const std::string_view text(reinterpret_cast<const char*>(order->data()), order->size());
  if (text == "little") return {};
  return failure(Errc::unsupported,
                 "was saved on a machine that is not little endian; save it on one that is");
}

float value_at(const std::byte* from, Dtype dtype) {
  if (dtype == Dtype::f32) {
    float value = 0;
    std::memcpy(&value, from, sizeof value);
    return value;
  }
  std::uint16_t bits = 0;
  std::memcpy(&bits, from, sizeof bits);
  return dtype == Dtype::bf16 ? float_of_bf16(bits) : float_of_f16(bits);
}

PromptRows rows_of(const TorchTensor& tensor, const std::vector<std::byte>& storage) {
  const std::uint64_t rows = tensor.sizes[0], width = tensor.sizes[1];
  const std::size_t bytes = bytes_of(tensor.dtype);
  PromptRows made{static_cast<std::uint32_t>(width), std::vector<float>(rows * width)};
  float* to = made.values.data();
  for (std::uint64_t row = 0; row < rows; ++row) {
    const std::uint64_t first = tensor.offset + row * tensor.strides[0];
    for (std::uint64_t i = 0; i < width; ++i)
      *to++ = value_at(storage.data() + (first + i * tensor.strides[1]) * bytes, tensor.dtype);
  }
  return made;
}

}  // namespace

Expected<PromptRows> read_torch_tensor(std::span<const std::byte> bytes, const RowBounds& bounds) {
  const auto archive = TorchArchive::open(bytes);
  if (!archive) return forward_error(archive);
  const auto pickle = archive->read("data.pkl", kMostOfSmallEntries);
  if (!pickle) return forward_error(pickle);
  auto described =
      read_torch_pickle({reinterpret_cast<const char*>(pickle->data()), pickle->size()});
  if (!described) return forward_error(described);
  const auto tensor = squeezed(std::move(*described));
  if (!tensor) return forward_error(tensor);
  if (auto valid = check_bounds(*tensor, bounds); !valid) return forward_error(valid);
  if (auto valid = check_places(*tensor); !valid) return forward_error(valid);
  if (auto valid = check_byte_order(*archive); !valid) return forward_error(valid);
  const auto storage = archive->read("data/" + tensor->storage, bytes.size());
  if (!storage) return forward_error(storage);
  const std::size_t each = bytes_of(tensor->dtype);  // not multiplied: any number may stand there
  if (storage->size() % each != 0 || storage->size() / each != tensor->storage_size)
    return failure(Errc::bad_format,
                   "has " + std::to_string(storage->size()) + " bytes of values, and says it has " +
                       std::to_string(tensor->storage_size) +
                       " values; send what torch.save() writes, whole and unchanged");
  return rows_of(*tensor, *storage);
}

Expected<PromptRows> read_prompt_rows(std::string_view base64, const RowBounds& bounds) {
  const auto bytes = decode_base64(base64);
  if (!bytes) return forward_error(bytes);
  return read_torch_tensor(*bytes, bounds);
}

}  // namespace kvhive
