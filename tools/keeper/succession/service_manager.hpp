#pragma once
// The service manager that has started the daemon (systemd), if one has: it is told when the daemon
// serves, and which process is its main one. sd_notify(3) describes the protocol, and recommends to
// write the few lines anew rather than to depend on systemd's library.

#include <string>

#include "base/unique_fd.hpp"

namespace kvhive {

class ServiceManager {
 public:
  /// Finds it by $NOTIFY_SOCKET. Does nothing if there is none.
  static ServiceManager of_this_process();

  /// Lines of "NAME=value". An error costs nothing but the message.
  void tell(const std::string& lines) const;

 private:
  UniqueFd socket_;
};

}  // namespace kvhive
