#include "tools/serve/serve.hpp"

#include <algorithm>
#include <boost/asio/signal_set.hpp>
#include <csignal>

#include "config/process_limits.hpp"
#include "tools/program/version.hpp"
#include "tools/serve/openai/error.hpp"

namespace kvhive {
namespace {

ServiceNumbers numbers_of(const Connections& connections, const Hives& hives,
                          const Service& service) {
  return {connections.counts.all(),
          connections.reading.size(),
          connections.answering.size(),
          hives.running(),
          hives.waiting(),
          hives.channels(),
          service.unknown_fields().count()};
}

}  // namespace

Expected<void> serve(const ServeOptions& options, const ServedModel& model,
                     const std::function<void(std::uint16_t)>& on_ready) {
  forbid_core_dumps();
  // Channels, their memory and the loop itself take some of the descriptors.
  const std::uint64_t descriptors = take_process_limits().descriptors;
  const std::vector<std::string> domains = options.service.api_keys.domains();
  const std::uint64_t ours = 32 + 8 * Hives::most_channels(options.hive, domains.size());
  if (descriptors < ours + 16)
    return failure(Errc::os_error, "this process may open only " + std::to_string(descriptors) +
                                       " files; raise the limit (ulimit -n) to at least " +
                                       std::to_string(ours + 16));
  boost::asio::io_context loop(1);
  Hives hives(loop, options.socket, options.hive, domains);
  const HttpServer* listener = nullptr;
  const Service* asked = nullptr;
  PoolLink link(options.socket);
  Metrics metrics(loop, link, model.name, options.metrics_old_names,
                  [&] { return numbers_of(listener->connections(), hives, *asked); });
  HivePage page(loop, link, {model.name, release(), !options.service.api_keys.empty()});
  Service service(loop, hives, model, metrics, page, options.service);
  asked = &service;
  Connections connections;
  connections.limits = options.http;
  connections.limits.connections =
      std::min<std::uint64_t>(options.http.connections, descriptors - ours);
  connections.answer = [&service](const std::shared_ptr<Exchange>& exchange) {
    service.handle(exchange);
  };
  connections.refuse = [](Exchange& exchange, int status, const std::string& text) {
    exchange.answer(to_answer({status, text}));
  };
  HttpServer server(loop, std::move(connections));
  listener = &server;
  if (auto listening = server.listen(options.host, options.port); !listening) return listening;
  std::signal(SIGPIPE, SIG_IGN);
  boost::asio::signal_set stop(loop, SIGINT, SIGTERM);
  stop.async_wait([&](boost::system::error_code error, int) {
    if (error) return;
    server.stop();
    loop.stop();
  });
  on_ready(server.port());
  loop.run();
  return {};
}

}  // namespace kvhive
