#include "models/gpu/gpu_adapters.hpp"

#include <algorithm>

#include "base/round_up.hpp"

namespace kvhive {
namespace {

constexpr std::size_t kMatrixAlignment = 256;

std::size_t bytes_of_a(const LoraFile::Pair& pair, Dtype dtype) {
  return std::size_t(pair.rank) * std::size_t(pair.in) * bytes_of(dtype);
}
std::size_t bytes_of_b(const LoraFile::Pair& pair, Dtype dtype) {
  return std::size_t(pair.out) * std::size_t(pair.rank) * bytes_of(dtype);
}

}  // namespace

GpuAdapters::GpuAdapters(std::span<const LoraFile> files, Dtype dtype, std::size_t begin)
    : dtype_(dtype), end_(begin), count_(files.size()) {
  for (std::size_t i = 0; i < files.size(); ++i)
    for (const LoraFile::Pair& pair : files[i].pairs()) {
      Row& row = rows_[{pair.layer, pair.weight}];
      row.matrices.resize(count_);
      AdapterMatrices& of = row.matrices[i];
      of.a = take(bytes_of_a(pair, dtype));
      of.b = take(bytes_of_b(pair, dtype));
      of.rank = pair.rank;
      of.scale = files[i].scale();
      most_rank_ = std::max(most_rank_, pair.rank);
    }
  for (auto& [place, row] : rows_) row.offset = take(count_ * sizeof(AdapterMatrices));
}

std::size_t GpuAdapters::take(std::size_t bytes) {
  const std::size_t offset = round_up(end_, kMatrixAlignment);
  end_ = offset + bytes;
  return offset;
}

std::optional<std::size_t> GpuAdapters::beside(std::int32_t layer, LayerWeight weight) const {
  const auto found = rows_.find({layer, weight});
  if (found == rows_.end()) return std::nullopt;
  return found->second.offset;
}

Expected<void> GpuAdapters::upload(Device& device, std::span<const LoraFile> files,
                                   std::byte* region) const {
  if (files.empty()) return {};
  auto uploader = Uploader::create(device);
  if (!uploader) return forward_error(uploader);
  auto sent = send_all(*uploader, files, region);
  // Also after a failure: what is on its way reads memory that goes now.
  auto arrived = uploader->finish();
  return sent ? arrived : sent;
}

Expected<void> GpuAdapters::send_all(Uploader& uploader, std::span<const LoraFile> files,
                                     std::byte* region) const {
  Expected<void> sent;
  for (std::size_t i = 0; i < files.size(); ++i)
    for (const LoraFile::Pair& pair : files[i].pairs()) {
      const AdapterMatrices& of = rows_.at({pair.layer, pair.weight}).matrices[i];
      if (sent) sent = uploader.put(region + of.a, pair.a, dtype_);
      if (sent) sent = uploader.put(region + of.b, pair.b, dtype_);
    }
  for (const auto& [place, row] : rows_)
    if (sent) sent = uploader.put(region + row.offset, std::as_bytes(std::span(row.matrices)));
  return sent;
}

}  // namespace kvhive
