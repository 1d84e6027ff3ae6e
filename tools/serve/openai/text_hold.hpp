#pragma once
// Keeps back of a streamed text what may turn out to be a stop text, which is cut off.

#include <string>
#include <string_view>
#include <vector>

namespace kvhive {

class TextHold {
 public:
  explicit TextHold(std::vector<std::string> stop) : stop_(std::move(stop)) {}

  /// Returns what can be shown now.
  std::string push(std::string_view text);
  /// The rest of a text that has `whole_bytes` altogether.
  std::string finish(std::size_t whole_bytes);

 private:
  std::vector<std::string> stop_;
  std::string held_;
  std::size_t shown_ = 0;
};

}  // namespace kvhive
