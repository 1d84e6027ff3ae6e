#pragma once
// Closes connections whose unread packets carry descriptors. The last close of a file can take as
// long as its owner likes: a TCP socket with SO_LINGER waits for its peer, a file in FUSE for its
// server. So a process is forked that takes the packets and holds the connections, the keeper
// closes its own descriptors of them, and the process ends. Files that the kernel closes at a
// process's end do not linger; if one takes long nevertheless, nobody waits for it.
//
// Needed only before Linux 6.16; since then the kernel refuses such packets (refuse_descriptors()).

#include <vector>

#include "base/loop/event_loop.hpp"
#include "base/unique_fd.hpp"
#include "tools/keeper/strangers/expendable.hpp"

namespace kvhive {

class Burial {
 public:
  explicit Burial(EventLoop& loop) : processes_(loop) {}
  Burial(const Burial&) = delete;
  Burial& operator=(const Burial&) = delete;
  ~Burial();

  /// Closes the connection without closing what its packets carry in this process. If the keeper
  /// has another descriptor of it, it stays open and is rid of its packets.
  void bury(UniqueFd socket);

 private:
  void start();

  std::vector<UniqueFd> waiting_;
  Expendables processes_;
};

}  // namespace kvhive
