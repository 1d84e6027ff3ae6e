#pragma once
// The terminal, taken for a view of the whole screen: alternate screen, no cursor, keys at once and
// without echo. It is given back on every way out: by the destructor, and by a handler if the
// program crashes. Signals are the caller's: it gives the terminal back before it stops or ends.

#include <termios.h>

#include <string_view>

#include "base/expected.hpp"
#include "tools/screen/frame.hpp"

namespace kvhive {

class Terminal {
 public:
  /// Takes the terminal at standard input and output. One per process at a time. Error: standard
  /// input is no terminal.
  [[nodiscard]] static Expected<Terminal> take();
  Terminal(Terminal&& other) noexcept;
  Terminal& operator=(Terminal&&) = delete;
  ~Terminal();

  /// Gives the terminal back, as it was. Does nothing if it has been given back.
  void give_back();
  /// Takes it again, after the process was stopped.
  void take_again();

  /// Errors: Errc::peer_died if the terminal has gone.
  [[nodiscard]] Expected<void> write(std::string_view bytes) const;
  ScreenSize size() const;

 private:
  Terminal() = default;
  bool is_owner_ = true;
};

}  // namespace kvhive
