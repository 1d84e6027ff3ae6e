#include "client/connection.hpp"

#include <poll.h>
#include <sys/epoll.h>

#include <cerrno>
#include <optional>

#include "config/domains/domain_name.hpp"
#include "ipc/default_socket.hpp"
#include "ipc/channel/doorbell.hpp"
#include "ipc/protocol.hpp"

namespace kvhive {
namespace {

/// The reason that the daemon gave when it ended the connection; nothing = it has not ended it. A
/// keeper that follows a killed one may send the welcome again.
std::optional<Error> end_of(const UniqueFd& socket) {
  const auto last_packet = receive_packet(socket.get());
  if (last_packet && *last_packet && (*last_packet)->is(MessageType::client_welcome))
    return std::nullopt;
  const auto refused = last_packet && *last_packet ? (*last_packet)->as<Refused>() : std::nullopt;
  if (refused) return error_of(*refused);
  return Error{Errc::peer_died, "the daemon has ended; start it again and submit anew"};
}

/// The same of a connection that is known to have ended.
Error last_words_of(const UniqueFd& socket) {
  while (true)
    if (auto end = end_of(socket)) return *end;
}

/// Readable while one of them is.
Expected<UniqueFd> either_of(const UniqueFd& socket, const UniqueFd& bell) {
  UniqueFd either(epoll_create1(EPOLL_CLOEXEC));
  if (!either) return os_failure("epoll_create1");
  for (const int fd : {socket.get(), bell.get()}) {
    epoll_event readable{};
    readable.events = EPOLLIN;
    if (epoll_ctl(either.get(), EPOLL_CTL_ADD, fd, &readable) != 0) return os_failure("epoll_ctl");
  }
  return either;
}

bool is_readable(const UniqueFd& socket) {
  pollfd fd{socket.get(), POLLIN, 0};
  return poll(&fd, 1, 0) == 1;
}

}  // namespace

Expected<Connection> Connection::open(const std::string& socket_path, std::uint32_t engine,
                                      std::size_t channel_bytes, const std::string& domain,
                                      const std::string& model, int timeout_ms) {
  if (!domain.empty() && !is_domain_name(domain))
    return failure(
        Errc::bad_argument,
        "domain: '" + domain + "' is no name of a domain; those have " + kDomainNameRule);
  auto socket = connect_to_daemon(socket_path.empty() ? default_socket() : socket_path, timeout_ms);
  if (!socket) return forward_error(socket);
  const ClientHello hello{channel_bytes, engine, FixedText<36>(domain), FixedText<72>(model)};
  if (hello.model.str() != model)
    return failure(Errc::bad_argument, "model: '" + model +
                                           "' is no name of a model; those have "
                                           "at most 64 bytes");
  auto welcome = say_hello(socket->get(), hello, timeout_ms);
  if (!welcome) return forward_error(welcome);
  auto& fds = welcome->fds;
  if (fds.size() != 4) return failure(Errc::bad_format, "the daemon's welcome carries no channel");
  const std::size_t granted = welcome->message.channel_bytes;
  auto channel = ClientChannel::open(std::move(fds[0]), fds[1], granted, std::move(fds[2]));
  // A channel that its engine refused at once has lost its memory already. The daemon says why
  // before it takes the memory back.
  if (!channel && is_readable(*socket))
    if (auto end = end_of(*socket)) return tl::unexpected(*end);
  if (!channel) return forward_error(channel);
  auto news = either_of(*socket, fds[3]);
  if (!news) return forward_error(news);
  if (!send_packet(socket->get(), RequestsSealed{})) return tl::unexpected(last_words_of(*socket));
  return Connection{std::move(*socket), std::move(fds[3]), std::move(*news), std::move(*channel),
                    granted};
}

Expected<void> Connection::wait(int timeout_ms) {
  pollfd fds[2] = {{bell.get(), POLLIN, 0}, {socket.get(), POLLIN, 0}};
  const int ready = poll(fds, 2, timeout_ms);
  if (ready < 0 && errno != EINTR) return os_failure("poll");
  const bool may_ring_again = answer_client_bell(bell.get());
  const bool has_rung = fds[0].revents != 0 && may_ring_again;
  if (has_rung || fds[1].revents == 0) return {};
  if (auto end = end_of(socket)) return tl::unexpected(*end);
  return {};
}

}  // namespace kvhive
