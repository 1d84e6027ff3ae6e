#include "tools/serve/hive/hive.hpp"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <limits>
#include <utility>

#include "base/log.hpp"

namespace kvhive {
namespace asio = boost::asio;
namespace {

bool may_serve(Hive::ModelId served, Hive::ModelId wanted) {
  return served == wanted || served == 0 || wanted == 0;
}

}  // namespace

std::size_t prompt_bytes(const GenerateRequest& request) {
  return request.prompt.size() + request.prompt_tokens.size() * sizeof(TokenId) +
         request.prompt_embeds.size() * sizeof(float);
}

Hive::Hive(asio::io_context& loop, Daemon daemon, Limits limits, std::string domain,
           Identify identify, OnOpened on_opened)
    : loop_(loop),
      daemon_(std::move(daemon)),
      limits_(limits),
      domain_(std::move(domain)),
      identify_(std::move(identify)),
      tell_opened_(std::move(on_opened)) {}

Hive::~Hive() {
  *is_alive_ = false;
  for (const auto& lane : lanes_) lane->close();
  opener_.join();
}

Hive::Key Hive::submit(GenerateRequest request, ModelId model, Lane::Listener listener) {
  const Key key = next_++;
  const std::size_t channel_bytes = channel_bytes_for(request);
  Waiting next{key, std::move(request), model, std::move(listener), channel_bytes};
  if (waiting_.size() >= limits_.waiting ||
      waiting_bytes_ + bytes_of(next) > limits_.waiting_bytes) {
    fail(next, {ErrorCode::overloaded,
                std::to_string(waiting_.size()) + " requests wait for a channel already; try again",
                std::chrono::milliseconds(1000)});
    return key;
  }
  if (!next.request.adapter.empty()) ++of_adapters_[next.request.adapter];
  waiting_bytes_ += bytes_of(next);
  waiting_.push_back(std::move(next));
  start_waiting();
  return key;
}

void Hive::cancel(Key key) {
  failing_.erase(key);
  std::erase_if(waiting_, [this, key](const Waiting& request) {
    if (request.key != key) return false;
    waiting_bytes_ -= bytes_of(request);
    return true;
  });
  if (const auto found = running_.find(key); found != running_.end()) {
    const Running gone = found->second;
    running_.erase(found);
    gone.lane->discard(gone.request);
  }
  start_waiting();
}

void Hive::hold(Key key) {
  if (const auto found = running_.find(key); found != running_.end())
    found->second.lane->hold(found->second.request);
}

void Hive::go_on(Key key) {
  if (const auto found = running_.find(key); found != running_.end())
    found->second.lane->go_on(found->second.request);
}

void Hive::count_adapters(std::map<std::string, OfAdapter>& counts) const {
  for (const auto& [adapter, total] : of_adapters_) counts[adapter].total += total;
  for (const auto& [key, request] : running_) {
    if (request.adapter.empty()) continue;
    OfAdapter& of = counts[request.adapter];
    ++(request.is_admitted ? of.running : of.waiting);
  }
  for (const Waiting& request : waiting_)
    if (!request.request.adapter.empty()) ++counts[request.request.adapter].waiting;
}

std::size_t Hive::bytes_of(const Waiting& request) {
  const GenerateRequest& asked = request.request;
  return prompt_bytes(asked) + asked.allowed_token_ids.size() * sizeof(TokenId);
}

/// In the order in which they came. One that needs more than there is does not hold up those behind
/// it that need less.
void Hive::start_waiting() {
  static const std::size_t kLeast = channel_bytes_for({});  // none needs less
  std::size_t too_much = std::numeric_limits<std::size_t>::max();
  for (auto next = waiting_.begin(); next != waiting_.end() && too_much > kLeast;) {
    if (next->channel_bytes >= too_much) {
      ++next;
    } else if (start(*next)) {
      waiting_bytes_ -= bytes_of(*next);
      next = waiting_.erase(next);
    } else {
      too_much = next->channel_bytes;
      ++next;
    }
  }
}

/// False: it has to wait.
bool Hive::start(Waiting& next) {
  std::sort(lanes_.begin(), lanes_.end(),
            [](const auto& a, const auto& b) { return a->load() < b->load(); });
  const std::size_t bytes = next.channel_bytes;
  for (const auto& lane : lanes_) {
    if (lane->is_lost() || lane->bytes() < bytes) continue;
    if (!may_serve(lane->model(), next.model)) continue;
    const auto submitted = lane->submit(
        next.request, [this, key = next.key, has_adapter = !next.request.adapter.empty(),
                       listener = next.listener](const Progress& news) {
          if (has_adapter && news.prompt_tokens != 0) running_.at(key).is_admitted = true;
          if (news.reason != Finish::none) running_.erase(key);
          listener(news);
        });
    if (submitted) {
      running_.emplace(next.key, Running{lane, *submitted, next.request.adapter});
      return true;
    }
    if (submitted.error().code == ErrorCode::pool_exhausted) continue;
    fail(next, submitted.error());
    return true;
  }
  if (lanes_.size() >= limits_.channels && !has_lane_of(bytes)) {
    // None will ever do. The sort has the idle ones in front.
    if (lanes_.front()->load() != 0) {
      fail(next, {ErrorCode::overloaded,
                  "all channels are in use and too small for this request; try again",
                  std::chrono::milliseconds(1000)});
      return true;
    }
    if (!is_opening_) {
      lanes_.front()->close();
      lanes_.erase(lanes_.begin());
    }
  }
  if (lanes_.size() < limits_.channels) open_lane(std::max(bytes, limits_.channel_bytes));
  return false;
}

bool Hive::has_lane_of(std::size_t bytes) const {
  return std::ranges::any_of(
      lanes_, [&](const auto& lane) { return !lane->is_lost() && lane->bytes() >= bytes; });
}

void Hive::open_lane(std::size_t bytes) {
  if (std::exchange(is_opening_, true)) return;
  asio::post(opener_, [this, bytes, is_alive = is_alive_, &loop = loop_] {
    auto opened = std::make_shared<Result<Opened>>(open(bytes));
    asio::post(loop, [this, is_alive, opened] {
      if (*is_alive) on_opened(std::move(*opened));
    });
  });
}

/// The daemon is asked before and after, since another may take its place in between.
Result<Hive::Opened> Hive::open(std::size_t bytes) const {
  const auto identify = [this] { return identify_ ? identify_() : Result<ModelId>(0); };
  const auto before = identify();
  if (!before) return before.error();
  ClientOptions options;
  options.socket = daemon_.socket;
  options.model = daemon_.model;
  options.channel_bytes = bytes;
  options.domain = domain_;
  auto client = Client::connect(options);
  if (!client) return client.error();
  const auto after = identify();
  if (!after) return after.error();
  if (*before != *after)
    return ClientError{ErrorCode::not_running, "another daemon was started on " + daemon_.socket +
                                                   " at this moment; try again"};
  return Opened{std::move(*client), *after};
}

void Hive::on_opened(Result<Opened> opened) {
  is_opening_ = false;
  if (opened && tell_opened_) tell_opened_(opened->model);
  for (const Answer& answer : std::exchange(askers_, {}))
    answer(opened ? Result<void>() : Result<void>(why_none(opened.error())));
  if (opened) {
    said_.clear();
    lanes_.push_back(std::make_shared<Lane>(loop_, std::move(opened->client), opened->model,
                                            [this](Lane& lane) { on_change(lane); }));
    lanes_.back()->start();
    refuse_for_others(opened->model);
    return start_waiting();
  }
  // While other channels run, a request may wait for their room. That is no use to one that is too
  // large for them.
  const ClientError error = why_none(opened.error());
  if (std::exchange(said_, error.text) != error.text)  // who asks for it, asks often
    spdlog::warn("no further channel: {}", error.text);
  const auto has_hope = [this, &error](const Waiting& request) {
    return error.code == ErrorCode::pool_exhausted && has_lane_of(request.channel_bytes);
  };
  const auto hopeless = std::stable_partition(waiting_.begin(), waiting_.end(), has_hope);
  const std::vector<Waiting> failed(std::make_move_iterator(hopeless),
                                    std::make_move_iterator(waiting_.end()));
  waiting_.erase(hopeless, waiting_.end());
  for (const Waiting& request : failed) {
    waiting_bytes_ -= bytes_of(request);
    fail(request, error);
  }
}

/// Requests that were made for what an earlier daemon served.
void Hive::refuse_for_others(ModelId model) {
  const auto others = std::stable_partition(
      waiting_.begin(), waiting_.end(),
      [model](const Waiting& request) { return may_serve(model, request.model); });
  const std::vector<Waiting> refused(std::make_move_iterator(others),
                                     std::make_move_iterator(waiting_.end()));
  waiting_.erase(others, waiting_.end());
  for (const Waiting& request : refused) {
    waiting_bytes_ -= bytes_of(request);
    fail(request, {ErrorCode::not_running,
                   "the daemon on " + daemon_.socket +
                       " was started anew with another model since this request came; try again",
                   std::chrono::milliseconds(1000)});
  }
}

/// All that is asked for but the domain is right.
ClientError Hive::why_none(const ClientError& error) const {
  if (error.code != ErrorCode::bad_argument) return error;
  const std::string what =
      domain_.empty() ? "kvhive serve is refused: " : "domain '" + domain_ + "' is refused: ";
  return {kNotAllowed, what + error.text};
}

void Hive::on_change(Lane& changed) {
  if (changed.is_lost())
    std::erase_if(lanes_, [&](const auto& lane) { return lane.get() == &changed; });
  start_waiting();
}

void Hive::fail(const Waiting& request, const ClientError& error) {
  Progress end;
  end.reason = Finish::error;
  end.error = error;
  failing_.insert(request.key);
  asio::post(loop_,
             [this, is_alive = is_alive_, key = request.key, listener = request.listener, end] {
               if (*is_alive && failing_.erase(key) != 0) listener(end);
             });
}

void Hive::look_for_daemon(Answer answer) {
  const auto serves = [](const auto& lane) { return !lane->is_lost(); };
  if (std::any_of(lanes_.begin(), lanes_.end(), serves)) return answer({});
  askers_.push_back(std::move(answer));
  open_lane(limits_.channel_bytes);
}

}  // namespace kvhive
