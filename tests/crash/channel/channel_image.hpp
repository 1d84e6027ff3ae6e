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
  void take_bytes(const ChannelMedium& medium) {
    requests_ = all_bytes(medium.requests);
    answers_ = all_bytes(medium.answers);
  }
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
    std::memcpy(medium.requests.data(), requests_.data(), requests_.size());
    std::memcpy(medium.answers.data(), answers_.data(), answers_.size());
    (void)answer_client_bell(medium.client_bell.client_end.get());
    for (int i = 0; i < client_rings_; ++i) ring_client(medium.client_bell.engine_end.get());
    (void)hear(medium);
    if (engine_rings_ != 0) ring(medium);
  }

  /// Whether the channel has exactly these bytes, in the used slots and in the heap.
  bool has_bytes_of(const ChannelMedium& medium) const {
    const auto is_same = [](const std::string& then, const MappedMemory& now, std::size_t table,
                            std::size_t heap) {
      return std::memcmp(then.data(), now.data(), table) == 0 &&
             std::memcmp(then.data() + heap, now.data() + heap, then.size() - heap) == 0;
    };
    return is_same(requests_, medium.requests, body_offset(kStorySlots), prompts_offset()) &&
           is_same(answers_, medium.answers, slots_offset() + kStorySlots * sizeof(AnswerSlot),
                   answers_offset());
  }
  /// A hash of it without times: equal for the same work done at another time.
  std::size_t digest() const {
    constexpr std::size_t kMix = 0x9e3779b97f4a7c15ull;
    const std::hash<std::string_view> hash;
    std::string timeless = answers_;
    for (std::uint32_t slot = 0; slot < kChannelSlots; ++slot)
      for (const std::size_t time : {offsetof(AnswerSlot, taken), offsetof(AnswerSlot, admitted),
                                     offsetof(AnswerSlot, first_token)})
        std::memset(&timeless[slots_offset() + slot * sizeof(AnswerSlot) + time], 0,
                    sizeof(AnswerSlot::taken));
    return hash(requests_) * kMix ^ hash(timeless) ^
           (std::size_t(client_rings_) << 32 ^ engine_rings_) * kMix;
  }

 private:
  static std::string_view all_bytes(const MappedMemory& memory) {
    return {reinterpret_cast<const char*>(memory.data()), memory.size()};
  }
  static std::uint64_t hear(const ChannelMedium& medium) {
    std::uint64_t rings = 0;
    return read(medium.engine_bell.get(), &rings, sizeof rings) == sizeof rings ? rings : 0;
  }
  void ring(const ChannelMedium& medium) const {
    KV_CHECK(write(medium.engine_bell.get(), &engine_rings_, sizeof engine_rings_) ==
             sizeof engine_rings_);
  }

  std::string requests_, answers_;
  int client_rings_ = 0;
  std::uint64_t engine_rings_ = 0;
};

}  // namespace kvhive::testing
