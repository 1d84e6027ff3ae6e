#include "models/gpu/uploader.hpp"

#include <algorithm>
#include <utility>

#include "kernels/element.hpp"

namespace kvhive {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{8} << 20;

}  // namespace

Expected<Uploader> Uploader::create(Device& device) {
  Uploader made(device);
  for (Piece& piece : made.pieces_) {
    auto memory = StagingBuffer::allocate(device, kPieceBytes);
    if (!memory) return forward_error(memory);
    auto stream = OrderedStream::open(device);
    if (!stream) return forward_error(stream);
    piece = {std::move(*memory), std::move(*stream)};
  }
  return made;
}

Expected<void> Uploader::put(std::byte* to, std::size_t bytes,
                             const std::function<void(std::span<std::byte>, std::size_t)>& fill) {
  for (std::size_t at = 0; at < bytes; at += kPieceBytes) {
    const Piece& piece = pieces_[next_++ % pieces_.size()];
    if (auto ready = piece.stream.finish(); !ready) return ready;
    const std::size_t count = std::min(kPieceBytes, bytes - at);
    fill({piece.memory.data(), count}, at);
    if (auto sent = device_.copy(to + at, piece.memory.data(), count, piece.stream.handle()); !sent)
      return sent;
  }
  return {};
}

Expected<void> Uploader::put(std::byte* to, std::span<const std::byte> bytes) {
  return put(to, bytes.size(), [bytes](std::span<std::byte> out, std::size_t first) {
    std::ranges::copy(bytes.subspan(first, out.size()), out.begin());
  });
}

Expected<void> Uploader::put(std::byte* to, const TensorView& tensor, Dtype dtype) {
  if (tensor.dtype == dtype) return put(to, tensor.bytes);
  const std::size_t size = bytes_of(dtype);
  const std::size_t elements = tensor.bytes.size() / bytes_of(tensor.dtype);
  return put(to, elements * size, [&](std::span<std::byte> out, std::size_t first) {
    for (std::size_t i = 0; i < out.size() / size; ++i)
      store_element(out.data(), i,
                    load_element(tensor.bytes.data(), first / size + i, tensor.dtype), dtype);
  });
}

Expected<void> Uploader::finish() {
  Expected<void> all;
  for (const Piece& piece : pieces_)
    if (auto done = piece.stream.finish(); !done && all) all = std::move(done);
  return all;
}

}  // namespace kvhive
