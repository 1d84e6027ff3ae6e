#pragma once
// A copy of all that two ends of a channel share: the channel's bytes and the rings that nobody has
// heard yet.

#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <functional>
#include <string>
#include <string_view>

#include "base/check.hpp"
#include "tests/crash/channel/channel_stage.hpp"

namespace kvhive::testing {

class ChannelImage {
 public:
  ChannelImage() = default;
  explicit ChannelImage(const ChannelMedium& medium) {
    take_rings(medium);
    take_bytes(medium);
  }

  /// The rings change in system calls only, the bytes at any instruction.
  void take_bytes(const ChannelMedium& medium) { bytes_ = all_bytes(medium); }
  /// True if they have changed.
  bool take_rings(const ChannelMedium& medium) {
    const int before = client_rings_;
    const std::uint64_t engine_before = engine_rings_;
    KV_CHECK(ioctl(medium.client_bell.client_end.get(), FIONREAD, &client_rings_) == 0, errno);
    engine_rings_ = hear(medium);
    if (engine_rings_ != 0) ring(medium);
    return client_rings_ != before || engine_rings_ != engine_before;
  }

  void put(const ChannelMedium& medium) const {
    std::memcpy(medium.mapped.data(), bytes_.data(), bytes_.size());
    (void)answer_client_bell(medium.client_bell.client_end.get());
    for (int i = 0; i < client_rings_; ++i) ring_client(medium.client_bell.engine_end.get());
    (void)hear(medium);
    if (engine_rings_ != 0) ring(medium);
  }

  /// Whether the channel has exactly these bytes, in the used slots and in the heap.
  bool has_bytes_of(const ChannelMedium& medium) const {
    const std::byte* now = medium.mapped.data();
    const std::size_t used = slots_offset() + kStorySlots * sizeof(RequestSlot);
    const std::size_t heap = heap_offset();
    return std::memcmp(bytes_.data(), now, used) == 0 &&
           std::memcmp(bytes_.data() + heap, now + heap, bytes_.size() - heap) == 0;
  }
  std::size_t digest() const {
    return std::hash<std::string_view>{}(bytes_) ^
           (std::size_t(client_rings_) << 32 ^ engine_rings_) * 0x9e3779b97f4a7c15ull;
  }

 private:
  static std::string_view all_bytes(const ChannelMedium& medium) {
    return {reinterpret_cast<const char*>(medium.mapped.data()), medium.mapped.size()};
  }
  static std::uint64_t hear(const ChannelMedium& medium) {
    std::uint64_t rings = 0;
    return read(medium.engine_bell.get(), &rings, sizeof rings) == sizeof rings ? rings : 0;
  }
  void ring(const ChannelMedium& medium) const {
    KV_CHECK(write(medium.engine_bell.get(), &engine_rings_, sizeof engine_rings_) ==
             sizeof engine_rings_);
  }

  std::string bytes_;
  int client_rings_ = 0;
  std::uint64_t engine_rings_ = 0;
};

}  // namespace kvhive::testing
