#include "client/client.hpp"

#include <poll.h>

#include <cerrno>

#include "config/options.hpp"
#include "ipc/doorbell.hpp"

namespace kvhive {

Expected<Client> Client::connect(const ClientOptions& options) {
  auto socket = connect_to_daemon(options.socket.empty() ? default_socket() : options.socket);
  if (!socket) return forward_error(socket);
  auto welcome = say_hello(socket->get(), ClientHello{options.channel_bytes, options.engine});
  if (!welcome) return forward_error(welcome);
  if (welcome->fds.size() != 3)
    return failure(Errc::bad_format, "the daemon's welcome carries no channel");
  auto channel = ClientChannel::open(welcome->fds[0], welcome->message.channel_bytes,
                                     std::move(welcome->fds[1]));
  if (!channel) return forward_error(channel);
  return Client(std::move(*socket), std::move(welcome->fds[2]), std::move(*channel));
}

Expected<void> Client::wait(int timeout_ms) {
  pollfd fds[2] = {{doorbell_.get(), POLLIN, 0}, {socket_.get(), POLLIN, 0}};
  const int ready = poll(fds, 2, timeout_ms);
  if (ready < 0 && errno != EINTR) return os_failure("poll");
  const bool may_ring_again = answer_doorbell(doorbell_.get());
  const bool has_news = fds[0].revents != 0 && may_ring_again;
  if (has_news || fds[1].revents == 0) return {};
  auto last_words = receive_packet(socket_.get());
  const auto refused = last_words && *last_words ? (*last_words)->as<Refused>() : std::nullopt;
  if (refused) return tl::unexpected(error_of(*refused));
  return failure(Errc::peer_died, "the daemon is gone; start it again and submit anew");
}

Expected<Progress> Client::generate(const GenerateRequest& request,
                                    const std::function<void(const Progress&)>& on_progress) {
  auto number = submit(request);
  if (!number) return forward_error(number);
  Progress whole;
  while (true) {
    if (auto woken = wait(); !woken) return forward_error(woken);
    Progress news = read(*number);
    if (on_progress) on_progress(news);
    whole.tokens.insert(whole.tokens.end(), news.tokens.begin(), news.tokens.end());
    whole.text += news.text;
    if (news.reason == FinishReason::none) continue;
    news.tokens = std::move(whole.tokens);
    news.text = std::move(whole.text);
    return news;
  }
}

}  // namespace kvhive
