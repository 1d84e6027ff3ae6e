#include "tools/cli/hive_watch.hpp"

#include <signal.h>

#include <cerrno>

#include "ipc/pidfd.hpp"

namespace kvhive {
namespace {

/// A keeper that has not answered by then is shown as silent; it may answer the next question.
constexpr int kStatusMs = 500;

std::string silence_of(pid_t keeper) {
  const std::string process = keeper != 0 ? "kvhived " + std::to_string(keeper) : "kvhived";
  if (keeper != 0 && is_stopped(keeper))
    return process + " is stopped (kill -CONT " + std::to_string(keeper) + ")";
  return process + " does not answer";
}

}  // namespace

bool is_same_pool(const Inspector& a, const Inspector& b) {
  return a.memory().control().header.epoch_uuid == b.memory().control().header.epoch_uuid;
}

Expected<std::unique_ptr<HiveWatch>> HiveWatch::start(const std::string& socket,
                                                      std::chrono::milliseconds pause,
                                                      Privilege privilege) {
  auto inspector = Inspector::attach(socket, privilege, WithoutKeeper::read_pool_at_once);
  if (!inspector) return forward_error(inspector);
  return std::unique_ptr<HiveWatch>(new HiveWatch(socket, pause, privilege, std::move(*inspector)));
}

HiveWatch::HiveWatch(std::string socket, std::chrono::milliseconds pause, Privilege privilege,
                     Inspector inspector)
    : socket_(std::move(socket)), pause_(pause), privilege_(privilege) {
  news_.hive = std::make_shared<const Inspector>(std::move(inspector));
  news_.trouble = silence_of(news_.hive->keeper());
  thread_ = std::thread([this] { run(); });
}

HiveWatch::~HiveWatch() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

HiveWatch::News HiveWatch::news() const {
  const std::lock_guard lock(mutex_);
  return news_;
}

void HiveWatch::wait_for_first_answer(std::chrono::milliseconds limit) const {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, limit, [&] { return has_asked_; });
}

PoolNames HiveWatch::News::names() const {
  if (!status) return {};
  std::vector<std::string> adapters;  // of all models: no two have one of the same name
  for (const auto& model : status->at("models"))
    for (const auto& adapter : model.at("adapters")) adapters.push_back(adapter.get<std::string>());
  return {status->at("domains").at("names").get<std::vector<std::string>>(), adapters};
}

/// In another PID namespace only the kernel's number means something.
pid_t HiveWatch::News::keeper_pid() const {
  const pid_t attached = hive->keeper();
  if (!status || attached == 0) return attached;
  const pid_t answering = status->at("keeper").at("pid");
  const bool is_successor = answering != attached && kill(attached, 0) != 0 && errno == ESRCH;
  return is_successor ? answering : attached;
}

PoolNames HiveWatch::names_with(DomainId domain, const News& news,
                                std::chrono::milliseconds limit) const {
  PoolNames names = news.names();
  if (names.knows(domain) || news.keeper != News::Keeper::answering) return names;
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, limit, [&] { return news_.told > news.told; });
  return news_.names();
}

void HiveWatch::run() {
  sigset_t all;
  sigfillset(&all);  // signals are for the thread that draws
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  bool must_attach = !news().hive->has_keeper();
  do {
    News next = news();
    const pid_t keeper = next.keeper_pid();
    if (next.keeper != News::Keeper::ended && keeper != 0 && is_stopped(keeper)) {
      // It gets no questions and no connections: unread ones would fill its queues.
      next.keeper = News::Keeper::silent;
      next.trouble = silence_of(keeper);
      tell(std::move(next));
      continue;
    }
    if (must_attach && !attach(next)) {
      tell(std::move(next));
      continue;
    }
    must_attach = !ask(std::move(next));
  } while (!pause_or_stop());
}

/// Tells what becomes of it. False: attach anew before the next question.
bool HiveWatch::ask(News next) {
  auto status = next.hive->status(kStatusMs);
  if (status) {
    next.status = std::make_shared<const nlohmann::json>(std::move(*status));
    next.told = Clock::now();
    next.keeper = News::Keeper::answering;
    next.trouble.clear();
  } else {
    next.keeper = News::Keeper::silent;
    next.trouble = silence_of(next.keeper_pid());
  }
  const bool is_answered = next.keeper == News::Keeper::answering;
  tell(std::move(next));
  return is_answered;
}

/// False: nobody listens.
bool HiveWatch::attach(News& next) {
  auto inspector = Inspector::attach(socket_, privilege_, WithoutKeeper::read_pool_at_once);
  if (!inspector) {
    next.keeper = News::Keeper::ended;
    next.trouble =
        inspector.error().code == Errc::not_running
            ? "kvhived has ended; these are its last numbers. Waiting for the next on " + socket_
            : inspector.error().text;
    return false;
  }
  if (!is_same_pool(*inspector, *next.hive)) next.status.reset();
  next.hive = std::make_shared<const Inspector>(std::move(*inspector));
  return true;
}

bool HiveWatch::pause_or_stop() {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, pause_, [&] { return is_stopping_; });
}

void HiveWatch::tell(News news) {
  {
    const std::lock_guard lock(mutex_);
    news_ = std::move(news);
    has_asked_ = true;
  }
  changed_.notify_all();
}

}  // namespace kvhive
