#include "tools/serve/metrics/pool_link.hpp"

#include <poll.h>
#include <sys/eventfd.h>

#include <utility>

#include "base/check.hpp"
#include "base/log.hpp"
#include "ipc/questions.hpp"
#include "tools/snapshot/snapshot.hpp"

namespace kvhive {
namespace {

/// A living keeper answers within a millisecond; one on an overloaded machine may take longer.
constexpr int kPatienceMs = 1'000;
/// Between two attempts to attach: where none listens, and where this process is refused.
constexpr int kPauseMs = 1'000;
constexpr int kPauseOfRefusedMs = 10'000;
/// Between two questions; the second, to a keeper that does not answer. Its answer, when it comes
/// after all, is asked about at once.
constexpr int kRoundMs = 5'000;
constexpr int kRoundOfSilentMs = 60'000;
/// While somebody looks, and for how long a look counts.
constexpr int kRoundOfHurryMs = 1'000;
constexpr std::int64_t kHurryNs = 3'000'000'000;

std::int64_t now_ns() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

}  // namespace

PoolLink::PoolLink(std::string socket, std::function<void()> on_attached)
    : socket_(std::move(socket)),
      on_attached_(std::move(on_attached)),
      end_(eventfd(0, EFD_CLOEXEC)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  KV_CHECK(end_ && wake_);
  thread_ = std::thread([this] { run(); });
}

PoolLink::~PoolLink() {
  eventfd_write(end_.get(), 1);
  thread_.join();
}

PoolLink::Known PoolLink::known() const {
  const std::lock_guard lock(mutex_);
  return known_;
}

bool PoolLink::is_in_a_hurry() const { return now_ns() - hurried_ns_.load() < kHurryNs; }

void PoolLink::hurry() {
  const bool was_in_a_hurry = is_in_a_hurry();
  hurried_ns_.store(now_ns());
  if (!was_in_a_hurry) eventfd_write(wake_.get(), 1);
}

std::string PoolLink::no_engine_takes_requests() const {
  const Known now = known();
  if (now.status == nullptr) return {};
  std::string text;
  for (const auto& engine : now.status->at("engines")) {
    const std::string state = engine_state(*now.status, engine);
    if (state != "stopped" && state != "draining" && state != "drained") return {};
    text += (text.empty() ? "" : ", ") + ("engine " + engine.at("engine").dump()) + " is " + state;
  }
  return text.empty() ? text : "no engine takes requests: " + text;
}

void PoolLink::run() {
  std::uint64_t ticket = 0;
  std::optional<Link> link;
  int pause_ms = 0;
  while (!is_asked_to_end(pause_ms, link ? link->socket.get() : -1)) {
    if (!link) {
      auto attached = attach();
      if (!attached) {
        forget(attached.error());
        pause_ms = attached.error().code == Errc::not_running ? kPauseMs : kPauseOfRefusedMs;
        continue;
      }
      link = std::move(*attached);
      said_.clear();
      if (on_attached_) on_attached_();
      const std::lock_guard lock(mutex_);
      known_ = {};
      known_.memory = link->memory;
    }
    switch (ask(*link, ++ticket)) {
      case Answer::come: pause_ms = is_in_a_hurry() ? kRoundOfHurryMs : kRoundMs; break;
      case Answer::silence: pause_ms = kRoundOfSilentMs; break;
      case Answer::end:
        link.reset();
        forget(Error{Errc::not_running, "the daemon on " + socket_ + " has ended"});
        pause_ms = kPauseMs;
    }
  }
}

/// Waits, but not longer than until the daemon ends or sends something.
bool PoolLink::is_asked_to_end(int timeout_ms, int socket) const {
  pollfd watched[] = {{end_.get(), POLLIN, 0}, {wake_.get(), POLLIN, 0}, {socket, POLLIN, 0}};
  const bool has_news = poll(watched, 3, timeout_ms) > 0;
  eventfd_t ignored;
  if (has_news && watched[1].revents != 0) eventfd_read(wake_.get(), &ignored);
  return has_news && watched[0].revents != 0;
}

Expected<PoolLink::Link> PoolLink::attach() const {
  auto socket = connect_to_daemon(socket_, kPatienceMs);
  if (!socket) return forward_error(socket);
  auto welcome = say_hello(socket->get(), InspectorHello{layout_hash({}), 0}, kPatienceMs);
  if (!welcome) return forward_error(welcome);
  auto memory = PoolMemory::attach(take_pool_fds(*welcome), Access::read_only);
  if (!memory) return forward_error(memory);
  memory->hide_from_children();  // they render templates, which come from strangers
  return Link{std::move(*socket), std::make_shared<const PoolMemory>(std::move(*memory))};
}

PoolLink::Answer PoolLink::ask(const Link& link, std::uint64_t ticket) {
  auto status = ask_status(link.socket.get(), ticket, kPatienceMs);
  if (!status && status.error().code == Errc::peer_died) return Answer::end;
  const std::lock_guard lock(mutex_);
  known_.keeper_answers = status.has_value();
  if (!status) return Answer::silence;
  known_.keeper.domains = status->at("domains").at("names").get<std::vector<std::string>>();
  known_.keeper.models.clear();
  for (const auto& model : status->at("models")) known_.keeper.models.push_back(model.at("name"));
  known_.keeper.model_of.clear();
  for (const auto& engine : status->at("engines"))
    known_.keeper.model_of[engine.at("engine").get<std::uint32_t>()] = engine.at("model");
  known_.keeper.restarts.clear();
  for (const auto& engine : status->at("engines"))
    known_.keeper.restarts[engine.at("engine").get<std::uint32_t>()] =
        engine.at("restarts").get<std::uint64_t>();
  known_.told = std::chrono::steady_clock::now();
  known_.status = std::make_shared<const nlohmann::json>(std::move(*status));
  return Answer::come;
}

void PoolLink::forget(const Error& why) {
  {
    const std::lock_guard lock(mutex_);
    known_ = {};
    known_.is_refused = why.code != Errc::not_running;
    known_.trouble = why.text;
  }
  if (std::exchange(said_, why.text) != why.text)
    spdlog::warn("/metrics and the page without the pool: {}", why.text);
}

}  // namespace kvhive
