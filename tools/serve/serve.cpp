#include "tools/serve/serve.hpp"

#include <unistd.h>

#include <algorithm>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <csignal>
#include <cstdlib>

#include <fmt/format.h>

#include "base/log.hpp"
#include "config/machine/process_limits.hpp"
#include "tools/program/signals.hpp"
#include "tools/program/version.hpp"
#include "tools/serve/model/first_models.hpp"
#include "tools/serve/openai/error.hpp"

namespace kvhive {
namespace {

ServiceNumbers numbers_of(const HttpConnections& connections, const ModelServices& models,
                          const Service& service) {
  ServiceNumbers numbers;
  numbers.http = connections.counts.all();
  numbers.connections_reading = connections.reading.size();
  numbers.connections_answering = connections.answering.size();
  numbers.requests_running = models.running();
  numbers.requests_waiting = models.waiting();
  numbers.channels = models.channels();
  numbers.unknown_fields = service.unknown_fields().count();
  const std::vector<std::string> adapters = models.adapters();
  for (const std::string& adapter : adapters) numbers.adapters[adapter] = {};
  numbers.served_adapters = adapters.size();
  for (const auto& [adapter, of] : models.adapter_counts())
    numbers.adapters[adapter] = {of.running, of.waiting, of.total};
  numbers.unix_seconds =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  return numbers;
}

/// The name that this service has for its only model. Several have the daemon's names.
std::string only_of(const std::vector<std::string>& names) {
  return names.size() == 1 ? names.front() : "";
}

/// No more once the terminal was closed: a SIGHUP then means that, and no order to reload.
bool is_on_terminal() { return isatty(STDIN_FILENO) != 0 || isatty(STDERR_FILENO) != 0; }

/// A mistake of ours costs the request whose handler it was: its connection closes with the
/// handler, and the others' streams go on.
void run_whatever_is_thrown(boost::asio::io_context& loop) {
  while (!loop.stopped()) {
    try {
      loop.run();
    } catch (const std::exception& error) {
      spdlog::error("a request could not be answered: {}", error.what());
    }
  }
}

/// The end of a service: those that are being answered may end first, the rest is told, and what
/// was said is written.
class Ending {
 public:
  Ending(boost::asio::io_context& loop, HttpServer& server, std::chrono::seconds patience)
      : loop_(loop), server_(server), timer_(loop), patience_(patience) {}

  /// Called for each signal; the second one ends at once.
  void on_signal() {
    if (std::exchange(has_begun_, true)) return loop_.stop();
    const std::size_t open = server_.connections().answering.size();
    if (open != 0)
      spdlog::info("ending: {} requests under way{}", open,
                   patience_.count() != 0 ? " have " + std::to_string(patience_.count()) + " s"
                                          : std::string());
    server_.take_no_more();
    wait(Clock::now() + patience_, [this] {
      server_.dismiss();
      wait(Clock::now() + kToWrite, [this] { loop_.stop(); });
    });
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kToWrite{1};

  /// Until all are answered, at most until `end`.
  void wait(Clock::time_point end, std::function<void()> then) {
    if (server_.connections().answering.empty()) return loop_.stop();
    if (Clock::now() >= end) return then();
    timer_.expires_after(std::chrono::milliseconds(10));
    timer_.async_wait([this, end, then = std::move(then)](boost::system::error_code error) {
      if (!error) wait(end, then);
    });
  }

  boost::asio::io_context& loop_;
  HttpServer& server_;
  boost::asio::steady_timer timer_;
  std::chrono::seconds patience_;
  bool has_begun_ = false;
};

/// Ends the process. Threads that ask a stopped daemon would wait for it.
[[noreturn]] void leave_threads_behind(ModelServices& models, const ServiceOptions& service) {
  models.stop_rendering();
  if (service.spans) service.spans->flush();
  flush_log();
  std::_Exit(EXIT_SUCCESS);
}

}  // namespace

Expected<void> serve(const ServeOptions& options,
                     const std::function<void(const std::string&, std::uint16_t)>& on_ready) {
  forbid_core_dumps();
  auto first = first_models(options.model, options.serve_models, options.daemon_timeout);
  if (!first) return forward_error(first);
  // Channels, their memory and the loop itself take some of the descriptors.
  const std::uint64_t descriptors = take_process_limits().descriptors;
  take_descriptor_table();
  const std::vector<std::string> domains = options.service.api_keys.domains();
  const std::uint64_t ours =
      32 + 8 * ModelServices::most_channels(options.hive, first->size(), domains.size());
  if (descriptors < ours + 16)
    return failure(Errc::os_error, "this process may open only " + std::to_string(descriptors) +
                                       " files; raise the limit (ulimit -n) to at least " +
                                       std::to_string(ours + 16));
  auto signalled = signals_as_descriptor({SIGINT, SIGTERM, SIGHUP});
  if (!signalled) return forward_error(signalled);
  boost::asio::io_context loop(1);
  ModelServices models(loop, std::move(*first), options.hive, domains);
  const std::vector<std::string> names = models.names();
  const HttpServer* listener = nullptr;
  const Service* asked = nullptr;
  PoolLink link(options.socket, [&models] { models.check(); });
  Metrics metrics(loop, link, only_of(names), options.metrics_old_names,
                  [&] { return numbers_of(listener->connections(), models, *asked); });
  HivePage page(loop, link, {names, release(), !options.service.api_keys.empty()});
  Service service(loop, models, link, metrics, page, options.service);
  asked = &service;
  models.on_loaded = [&] {
    metrics.set_model(only_of(models.names()));
    page.set_models(models.names());
  };
  HttpConnections connections;
  connections.limits = options.http;
  connections.limits.connections =
      std::min<std::uint64_t>(options.http.connections, descriptors - ours);
  connections.answer = [&service](const std::shared_ptr<Exchange>& exchange) {
    service.handle(exchange);
  };
  connections.answer_to_head = [&service](Exchange& exchange) {
    return service.answer_to_head(exchange);
  };
  connections.refuse = [](Exchange& exchange, int status, const std::string& text) {
    exchange.answer(to_answer({status, text}));
  };
  HttpServer server(loop, std::move(connections));
  listener = &server;
  if (auto listening = server.listen(options.host, options.port); !listening) return listening;
  std::signal(SIGPIPE, SIG_IGN);
  Ending ending(loop, server, options.shutdown_timeout);
  boost::asio::posix::stream_descriptor signals(loop, signalled->release());
  const bool has_terminal = is_on_terminal();
  const std::function<void()> listen = [&] {
    signals.async_wait(signals.wait_read, [&](boost::system::error_code error) {
      if (error) return;
      const int signal = next_signal(signals.native_handle());
      listen();
      if (signal == SIGHUP && has_terminal == is_on_terminal()) {
        if (auto reopened = reopen_log(); !reopened) spdlog::error("{}", reopened.error().text);
        service.reload();
      } else if (signal != 0) {
        ending.on_signal();
      }
    });
  };
  listen();
  on_ready(fmt::format("{}", fmt::join(names, ", ")), server.port());
  run_whatever_is_thrown(loop);
  server.stop();
  if (models.is_busy()) leave_threads_behind(models, options.service);
  return {};
}

}  // namespace kvhive
