#pragma once
// Batches of events over ZeroMQ, as vLLM sends them (vllm/distributed/kv_events.py
// ZmqEventPublisher, 2026): a PUB socket that sends [topic, sequence, batch], and a ROUTER socket
// that replays. A subscriber that was away asks for the sequence that it expects, and gets all
// batches from there on. Where they are not kept any more it gets the whole content as it is now:
// with vLLM it stays without.
//
// Not safe for threads. Nobody makes the caller wait: a subscriber that does not read loses
// batches, which the sequence shows it, and one that does not read its replay gets the rest when it
// reads on, or nothing more after half a minute.

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include <zmq.hpp>

#include "base/expected.hpp"

namespace kvhive {

struct PublisherOptions {
  std::string endpoint;         ///< of batches, such as tcp://127.0.0.1:5557
  bool connects = false;        ///< to a collector at the endpoint, instead of listening there
  std::string replay_endpoint;  ///< empty = none
  std::string topic;
  std::size_t buffer_batches = 10'000;               ///< kept for replays
  std::size_t buffer_bytes = std::size_t{64} << 20;  ///< of them
  int high_water_mark = 1'000;  ///< batches that wait for a subscriber, before it loses some
};

class EventPublisher {
 public:
  /// All that is there now, as batches; the first says AllBlocksCleared.
  using WholeContent = std::function<std::vector<std::string>()>;

  /// Errors: Errc::bad_argument names the endpoint and what is wrong with it.
  [[nodiscard]] static Expected<std::unique_ptr<EventPublisher>> open(PublisherOptions options,
                                                                      WholeContent whole);

  void publish(std::string batch);
  /// Waits for requests to replay, serves them, and returns after `limit`, or as soon as
  /// `wake` (a descriptor) is readable.
  void serve_replays(std::chrono::milliseconds limit, int wake);

  /// The number that the next batch gets; from 0.
  std::uint64_t next_sequence() const { return next_; }
  /// Where it listens, with the port that was chosen for 0.
  std::string endpoint() const { return bound_to(events_); }
  std::string replay_endpoint() const { return bound_to(*replays_); }

 private:
  using Clock = std::chrono::steady_clock;
  struct Batch {
    std::uint64_t sequence;
    std::shared_ptr<const std::string> bytes;
  };
  /// One subscriber's replay under way.
  struct Replay {
    std::string peer;
    std::deque<Batch> left;
    bool needs_end = true;
    Clock::time_point moved;  ///< when it took its last batch
  };

  EventPublisher(PublisherOptions options, WholeContent whole);
  void open_sockets();
  static std::string bound_to(const zmq::socket_t& socket);
  void take_requests();
  void begin_replay(std::string peer, std::uint64_t from);
  std::deque<Batch> batches_from(std::uint64_t from);
  bool go_on(Replay& replay);
  bool send_to(const std::string& peer, std::uint64_t sequence, const std::string& batch);

  PublisherOptions options_;
  WholeContent whole_;
  zmq::context_t context_;
  zmq::socket_t events_;
  std::unique_ptr<zmq::socket_t> replays_;
  std::uint64_t next_ = 0;
  std::deque<Batch> kept_;
  std::size_t kept_bytes_ = 0;
  std::list<Replay> under_way_;
  /// The whole content as it was at `whole_sequence_`, for several subscribers that ask at once.
  std::vector<std::shared_ptr<const std::string>> whole_kept_;
  std::uint64_t whole_sequence_ = 0;
};

}  // namespace kvhive
