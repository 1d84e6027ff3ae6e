#pragma once
// One channel to the daemon, in an event loop.

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <functional>
#include <map>
#include <memory>
#include <set>

#include "kvhive/client.hpp"

namespace kvhive {

class Lane : public std::enable_shared_from_this<Lane> {
 public:
  /// Called with everything new about a request.
  using Listener = std::function<void(const Progress&)>;
  /// The lane has room again, or its daemon has ended; then its requests have been told so.
  using OnChange = std::function<void(Lane&)>;

  /// \param model  what the daemon serves (Hive::ModelId)
  Lane(boost::asio::io_context& loop, Client client, std::uint64_t model, OnChange on_change);

  void start();
  /// Errors: pool_exhausted = no room now; what else is wrong with the request.
  Result<RequestId> submit(const GenerateRequest& request, Listener listener);
  /// Nothing more is told of it.
  void discard(RequestId request);
  /// Nothing is told of it until go_on(): what it gives meanwhile stays in the channel.
  void hold(RequestId request) { held_.insert(request); }
  void go_on(RequestId request);

  /// Gives the channel back, as soon as nobody has the lane any more. It must be idle.
  void close() { news_.close(); }

  std::size_t load() const { return listeners_.size(); }
  std::size_t bytes() const { return bytes_; }
  std::uint64_t model() const { return model_; }
  bool is_lost() const { return is_lost_; }

 private:
  void watch();
  void on_news();
  bool read(RequestId request);
  void lose(const ClientError& why);

  boost::asio::posix::stream_descriptor news_;
  Client client_;
  const std::uint64_t model_;
  OnChange on_change_;
  std::map<RequestId, Listener> listeners_;
  std::set<RequestId> held_;
  std::size_t bytes_;
  bool is_lost_ = false;
  bool has_discarded_ = false;  ///< requests, since the last one was submitted
};

}  // namespace kvhive
