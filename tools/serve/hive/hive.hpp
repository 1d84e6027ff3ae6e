#pragma once
// The daemon's engines, as a service in an event loop sees them: any number of requests at a time,
// over as many channels as they need.
//
// A channel is opened when all others are full, and kept. Whether a daemon is there shows with the
// first request; when it has ended, its requests are told so, and the next request looks for a
// daemon again.

#include <boost/asio/io_context.hpp>
#include <boost/asio/thread_pool.hpp>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tools/serve/hive/lane.hpp"

namespace kvhive {

/// As text, tokens or embeddings, whichever it has.
std::size_t prompt_bytes(const GenerateRequest& request);

class Hive {
 public:
  struct Limits {
    std::size_t channels = 32;
    std::size_t channel_bytes = std::size_t{8} << 20;
    std::size_t waiting = 8192;                          ///< requests for which no channel has room
    std::size_t waiting_bytes = std::size_t{256} << 20;  ///< of their prompts and allowed tokens
    std::size_t largest = std::size_t{32} << 20;         ///< request: of these bytes one may wait
  };
  /// Identifies a request. Never reused.
  using Key = std::uint64_t;
  /// Identifies what a daemon serves; 0 = not known. A request that was made for one model is not
  /// given to a daemon that serves another.
  using ModelId = std::uint64_t;
  /// Asks the daemon what it serves. Called in another thread; may wait.
  using Identify = std::function<Result<ModelId>()>;
  /// A channel was opened to a daemon that serves this. In the loop.
  using OnOpened = std::function<void(ModelId)>;

  struct Daemon {
    std::string socket;
    std::string model{};  ///< of several that it serves, this one; empty = the first
  };

  /// Beside the library's codes: the operator's rules do not let this service into the domain.
  static constexpr ErrorCode kNotAllowed = ErrorCode{1001};

  /// \param domain  in which all requests run; empty = the one that the operator's rules give this
  ///                user
  /// \param identify  none = what daemons serve is not known
  Hive(boost::asio::io_context& loop, Daemon daemon, Limits limits, std::string domain,
       Identify identify = {}, OnOpened on_opened = {});
  Hive(const Hive&) = delete;
  Hive& operator=(const Hive&) = delete;
  ~Hive();

  /// The listener is called in the loop, not before this returns, until the request has ended.
  Key submit(GenerateRequest request, ModelId model, Lane::Listener listener);
  /// Ends a request. Nothing more is told of it.
  void cancel(Key key);
  /// Nothing is told of a request that runs until go_on(): what it gives stays in its channel.
  void hold(Key key);
  void go_on(Key key);

  /// Calls `answer` once it is known whether a daemon serves, or why not.
  using Answer = std::function<void(const Result<void>&)>;
  void look_for_daemon(Answer answer);

  boost::asio::io_context& loop() const { return loop_; }
  /// Requests that name an adapter.
  struct OfAdapter {
    std::uint64_t running = 0;  ///< that an engine has admitted
    std::uint64_t waiting = 0;  ///< in an engine's queue, or for a channel
    std::uint64_t total = 0;    ///< so far
  };
  /// Adds this hive's, by the adapter's name.
  void count_adapters(std::map<std::string, OfAdapter>& counts) const;

  std::size_t running() const { return running_.size(); }
  std::size_t waiting() const { return waiting_.size(); }
  std::size_t channels() const { return lanes_.size(); }
  /// Whether a daemon is being asked for a channel. The destructor waits for its answer, until a
  /// timeout if it is stopped.
  bool is_opening() const { return is_opening_; }

 private:
  struct Waiting {
    Key key = 0;
    GenerateRequest request;
    ModelId model = 0;
    Lane::Listener listener;
    std::size_t channel_bytes = 0;  ///< the least that it fits into
  };
  struct Running {
    std::shared_ptr<Lane> lane;
    RequestId request = 0;
    std::string adapter;       ///< empty = none
    bool is_admitted = false;  ///< looked after for requests with an adapter only
  };

  static std::size_t bytes_of(const Waiting& request);
  void start_waiting();
  bool start(Waiting& next);
  bool has_lane_of(std::size_t bytes) const;
  void open_lane(std::size_t bytes);
  struct Opened {
    Client client;
    ModelId model = 0;
  };
  Result<Opened> open(std::size_t bytes) const;
  void on_opened(Result<Opened> opened);
  void refuse_for_others(ModelId model);
  ClientError why_none(const ClientError& error) const;
  void on_change(Lane& lane);
  void fail(const Waiting& request, const ClientError& error);

  boost::asio::io_context& loop_;
  const Daemon daemon_;
  const Limits limits_;
  const std::string domain_;
  const Identify identify_;
  const OnOpened tell_opened_;
  std::vector<std::shared_ptr<Lane>> lanes_;
  std::deque<Waiting> waiting_;
  std::size_t waiting_bytes_ = 0;
  std::map<Key, Running> running_;
  std::map<std::string, std::uint64_t> of_adapters_;  ///< requests so far
  std::string said_;                                  ///< why there was no further channel
  std::set<Key> failing_;                             ///< refused, and not told yet
  std::vector<Answer> askers_;
  Key next_ = 1;
  bool is_opening_ = false;
  std::shared_ptr<bool> is_alive_ = std::make_shared<bool>(true);
  boost::asio::thread_pool opener_{1};  ///< to connect may take until a timeout
};

}  // namespace kvhive
