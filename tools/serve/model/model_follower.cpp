#include "tools/serve/model/model_follower.hpp"

#include <boost/asio/post.hpp>
#include <utility>

#include "base/log.hpp"

namespace kvhive {
namespace asio = boost::asio;
namespace {

/// Between two attempts to load a model, or to ask a daemon that did not answer.
constexpr std::chrono::seconds kPause{2};

}  // namespace

ModelFollower::ModelFollower(asio::io_context& loop, const ModelSource& source, LoadedModel first)
    : loop_(loop),
      source_(source),
      loaded_(std::make_shared<const LoadedModel>(std::move(first))),
      timer_(loop) {}

ModelFollower::~ModelFollower() {
  *is_alive_ = false;
  thread_.join();
}

ApiError ModelFollower::trouble() const {
  return {503, trouble_.value_or(""), {}, std::chrono::milliseconds(1000)};
}

void ModelFollower::on_opened(Hive::ModelId id) {
  if (id == 0 || id == loaded_->model.id) return;
  if (!trouble_) trouble_ = "the daemon was started anew with another model; it is being loaded";
  check();
}

void ModelFollower::check() {
  asio::post(loop_, [this, is_alive = is_alive_] {
    if (*is_alive) ask();
  });
}

void ModelFollower::ask() {
  if (!source_.asks_daemon()) return;
  must_ask_ = true;
  if (std::exchange(is_busy_, true)) return;
  must_ask_ = false;
  timer_.cancel();
  asio::post(thread_, [this, is_alive = is_alive_, &loop = loop_] {
    asio::post(loop, [this, is_alive, told = source_.ask()] {
      if (*is_alive) on_told(told);
    });
  });
}

void ModelFollower::on_told(const Expected<DaemonModel>& told) {
  is_busy_ = false;
  if (!told) {
    // Requests are told that there is no daemon by those who look for one.
    if (told.error().code == Errc::not_found) miss(told.error().text);
    if (trouble_) ask_later();
  } else if (told->id == loaded_->model.id) {
    if (trouble_) spdlog::info("'{}' is served again", loaded_->model.name);
    trouble_.reset();
    said_.clear();
  } else {
    return load(*told);
  }
  if (must_ask_) ask();
}

/// The daemon has other models.
void ModelFollower::miss(const std::string& why) {
  trouble_ = why;
  if (std::exchange(said_, why) != why) spdlog::warn("{}", why);
}

void ModelFollower::load(const DaemonModel& told) {
  is_busy_ = true;
  if (!trouble_) spdlog::info("the daemon serves '{}' now; it is being loaded", told.name);
  trouble_ = "the daemon serves '" + told.name + "' now; it is being loaded, try again";
  asio::post(thread_, [this, is_alive = is_alive_, &loop = loop_, told] {
    auto read = std::make_shared<Expected<LoadedModel>>(source_.load(told));
    asio::post(loop, [this, is_alive, name = told.name, read] {
      if (*is_alive) on_read(name, std::move(*read));
    });
  });
}

void ModelFollower::on_read(const std::string& name, Expected<LoadedModel> read) {
  is_busy_ = false;
  if (read) {
    loaded_ = std::make_shared<const LoadedModel>(std::move(*read));
    trouble_.reset();
    said_.clear();
    spdlog::info("'{}' is served now", loaded_->model.name);
    if (on_loaded) on_loaded(loaded_);
  } else {
    const std::string before = std::exchange(said_, read.error().text);
    trouble_ = "the daemon serves '" + name +
               "' now, which this service cannot load: " + read.error().text +
               "; it tries again every " + std::to_string(kPause.count()) + " s";
    if (said_ != before) spdlog::error("{}", *trouble_);
    ask_later();
  }
  if (must_ask_) ask();
}

void ModelFollower::ask_later() {
  timer_.expires_after(kPause);
  timer_.async_wait([this](boost::system::error_code ended) {
    if (!ended) ask();
  });
}

}  // namespace kvhive
