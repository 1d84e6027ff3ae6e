#include "tools/events/event_publisher.hpp"

#include <algorithm>
#include <cstring>

#include "base/log.hpp"

namespace kvhive {
namespace {

constexpr std::size_t kMostReplays = 16;
constexpr std::chrono::seconds kPatience{30};
/// While a subscriber's queue is full.
constexpr std::chrono::milliseconds kPauseOfFull{5};
/// After the last batch of a replay; vLLM's own.
constexpr std::uint64_t kEndOfReplay = ~0ull;

std::string written(std::uint64_t sequence) {
  std::string bytes(8, '\0');
  for (int i = 0; i < 8; ++i) bytes[std::size_t(i)] = static_cast<char>(sequence >> (56 - 8 * i));
  return bytes;
}

std::uint64_t read_sequence(const zmq::message_t& bytes) {
  std::uint64_t sequence = 0;
  for (std::size_t i = 0; i < 8; ++i) sequence = sequence << 8 | bytes.data<std::uint8_t>()[i];
  return sequence;
}

Error cannot_open(const char* flag, const std::string& endpoint, const zmq::error_t& error) {
  return {Errc::bad_argument, fmt::format("{} '{}': {}; give tcp://ADDRESS:PORT with an address of "
                                          "this host and a port that is free, or ipc://PATH",
                                          flag, endpoint, error.what())};
}

}  // namespace

Expected<std::unique_ptr<EventPublisher>> EventPublisher::open(PublisherOptions options,
                                                               WholeContent whole) {
  std::unique_ptr<EventPublisher> publisher(
      new EventPublisher(std::move(options), std::move(whole)));
  const PublisherOptions& o = publisher->options_;
  zmq::socket_t& events = publisher->events_;
  events.set(zmq::sockopt::sndhwm, o.high_water_mark);
  events.set(zmq::sockopt::linger, 0);
  try {
    o.connects ? events.connect(o.endpoint) : events.bind(o.endpoint);
  } catch (const zmq::error_t& error) {
    return tl::unexpected(cannot_open("--endpoint", o.endpoint, error));
  }
  if (o.replay_endpoint.empty()) return publisher;
  publisher->replays_ = std::make_unique<zmq::socket_t>(publisher->context_, ZMQ_ROUTER);
  zmq::socket_t& replays = *publisher->replays_;
  replays.set(zmq::sockopt::sndhwm, 64);
  replays.set(zmq::sockopt::linger, 0);
  replays.set(zmq::sockopt::maxmsgsize, std::int64_t{1024});  // a request is eight bytes
  replays.set(zmq::sockopt::router_mandatory, true);
  try {
    replays.bind(o.replay_endpoint);
  } catch (const zmq::error_t& error) {
    return tl::unexpected(cannot_open("--replay-endpoint", o.replay_endpoint, error));
  }
  return publisher;
}

EventPublisher::EventPublisher(PublisherOptions options, WholeContent whole)
    : options_(std::move(options)), whole_(std::move(whole)), events_(context_, ZMQ_PUB) {}

std::string EventPublisher::bound_to(const zmq::socket_t& socket) {
  return socket.get(zmq::sockopt::last_endpoint);
}

void EventPublisher::publish(std::string batch) {
  const auto bytes = std::make_shared<const std::string>(std::move(batch));
  // A PUB socket never blocks: it drops for subscribers whose queues are full.
  events_.send(zmq::buffer(options_.topic), zmq::send_flags::sndmore);
  events_.send(zmq::buffer(written(next_)), zmq::send_flags::sndmore);
  events_.send(zmq::buffer(*bytes), zmq::send_flags::none);
  kept_.push_back({next_++, bytes});
  kept_bytes_ += bytes->size();
  while (kept_.size() > options_.buffer_batches ||
         (kept_bytes_ > options_.buffer_bytes && kept_.size() > 1)) {
    kept_bytes_ -= kept_.front().bytes->size();
    kept_.pop_front();
  }
}

void EventPublisher::serve_replays(std::chrono::milliseconds limit, int wake) {
  const auto end = Clock::now() + limit;
  do {
    if (replays_) take_requests();
    for (auto replay = under_way_.begin(); replay != under_way_.end();)
      replay = go_on(*replay) ? std::next(replay) : under_way_.erase(replay);
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
    const auto pause = under_way_.empty() ? left : std::min(left, kPauseOfFull);
    std::vector<zmq::pollitem_t> items = {{nullptr, wake, ZMQ_POLLIN, 0}};
    if (replays_) items.push_back({replays_->handle(), 0, ZMQ_POLLIN, 0});
    zmq::poll(items, std::max(pause, std::chrono::milliseconds(0)));
    if ((items[0].revents & ZMQ_POLLIN) != 0) return;
  } while (Clock::now() < end);
}

/// [peer, "", sequence]; what is something else is left unanswered.
void EventPublisher::take_requests() {
  for (;;) {
    std::vector<zmq::message_t> frames;
    bool has_more = true;
    while (has_more) {
      zmq::message_t frame;
      if (!replays_->recv(frame, zmq::recv_flags::dontwait)) return;
      has_more = frame.more();
      if (frames.size() < 4) frames.push_back(std::move(frame));
    }
    if (frames.size() == 3 && frames[1].size() == 0 && frames[2].size() == 8)
      begin_replay(frames[0].to_string(), read_sequence(frames[2]));
  }
}

void EventPublisher::begin_replay(std::string peer, std::uint64_t from) {
  under_way_.remove_if([&](const Replay& replay) { return replay.peer == peer; });
  if (under_way_.size() >= kMostReplays) {
    spdlog::warn("{} replays are under way; a further one is not begun", kMostReplays);
    return;
  }
  under_way_.push_back({std::move(peer), batches_from(from), true, Clock::now()});
}

std::deque<EventPublisher::Batch> EventPublisher::batches_from(std::uint64_t from) {
  if (from >= next_ && from != kEndOfReplay) return {};
  const std::uint64_t oldest = kept_.empty() ? next_ : kept_.front().sequence;
  if (from >= oldest && from != kEndOfReplay)
    return {kept_.begin() + static_cast<std::ptrdiff_t>(from - oldest), kept_.end()};
  if (whole_kept_.empty() || whole_sequence_ != next_) {
    whole_kept_.clear();
    for (std::string& batch : whole_())
      whole_kept_.push_back(std::make_shared<const std::string>(std::move(batch)));
    whole_sequence_ = next_;
  }
  // Numbers of batches that are kept no more, the last of them the last that was published: what
  // comes next over the other socket follows.
  std::deque<Batch> batches;
  const std::uint64_t first = next_ - std::min<std::uint64_t>(next_, whole_kept_.size());
  for (std::size_t i = 0; i < whole_kept_.size(); ++i)
    batches.push_back({std::min(first + i, next_ - 1), whole_kept_[i]});
  return batches;
}

/// False: it is at its end, or the subscriber has left it.
bool EventPublisher::go_on(Replay& replay) {
  try {
    while (!replay.left.empty()) {
      if (!send_to(replay.peer, replay.left.front().sequence, *replay.left.front().bytes))
        return Clock::now() - replay.moved < kPatience;
      replay.left.pop_front();
      replay.moved = Clock::now();
    }
    if (!send_to(replay.peer, kEndOfReplay, {})) return Clock::now() - replay.moved < kPatience;
  } catch (const zmq::error_t&) {
    // It has gone: EHOSTUNREACH.
  }
  return false;
}

/// False: its queue is full.
bool EventPublisher::send_to(const std::string& peer, std::uint64_t sequence,
                             const std::string& batch) {
  // The whole message is taken or none of it: the first frame decides.
  if (!replays_->send(zmq::buffer(peer), zmq::send_flags::sndmore | zmq::send_flags::dontwait))
    return false;
  replays_->send(zmq::buffer(std::string()), zmq::send_flags::sndmore);
  replays_->send(zmq::buffer(options_.topic), zmq::send_flags::sndmore);
  replays_->send(zmq::buffer(written(sequence)), zmq::send_flags::sndmore);
  replays_->send(zmq::buffer(batch), zmq::send_flags::none);
  return true;
}

}  // namespace kvhive
