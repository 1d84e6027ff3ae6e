#pragma once
// The whole API of a client process (libkvhive_client): attach to a daemon, submit prompts, stream
// tokens, abort. A client maps its own channel and nothing else. One Client is for one thread.

#include <functional>
#include <string>

#include "ipc/client_channel.hpp"
#include "ipc/protocol.hpp"

namespace kvhive {

struct ClientOptions {
  std::string socket;                 ///< empty = default_socket()
  std::uint32_t engine = kAnyEngine;  ///< pin to this engine, or let the daemon choose
  /// Room for prompts and outputs of all requests under way; 1 MiB to 1 GiB.
  std::size_t channel_bytes = std::size_t{16} << 20;
};

class Client {
 public:
  /// Errc::not_running: no daemon there; bad_argument, not_found: it refused, and says why.
  static Expected<Client> connect(const ClientOptions& options = {});

  /// Starts a request; its number until read() reports the end. Errors: see ClientChannel::submit.
  Expected<std::uint32_t> submit(const GenerateRequest& request) {
    return channel_.submit(request);
  }

  /// Sleeps until there may be something to read. An engine that dies is replaced behind the
  /// scenes, so a pause is all one sees; Errc::peer_died means that the daemon itself is gone.
  /// \param timeout_ms  -1 = for ever; running out is not an error
  Expected<void> wait(int timeout_ms = -1);

  /// What is new about a request.
  Progress read(std::uint32_t request) { return channel_.read(request); }

  void abort(std::uint32_t request) { channel_.abort(request); }

  /// Submits, streams and waits for the end. The result is the whole of it; an error only if there
  /// was no result.
  Expected<Progress> generate(const GenerateRequest& request,
                              const std::function<void(const Progress&)>& on_progress = {});

  ClientChannel& channel() { return channel_; }

 private:
  Client(UniqueFd socket, UniqueFd doorbell, ClientChannel channel)
      : socket_(std::move(socket)), doorbell_(std::move(doorbell)), channel_(std::move(channel)) {}

  /// Open for as long as we live: it tells the daemon, and us, when the other is gone.
  UniqueFd socket_;
  UniqueFd doorbell_;
  ClientChannel channel_;
};

}  // namespace kvhive
