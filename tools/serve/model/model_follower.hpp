#pragma once
// The model that is served now. When another daemon listens on the socket, perhaps with another
// model, what the service has of a model is loaded anew, in another thread. Until then, and while
// it cannot be loaded, requests are told so and nothing is computed: tokens of one tokenizer mean
// something else to another model.

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "tools/serve/model/model_source.hpp"
#include "tools/serve/openai/error.hpp"

namespace kvhive {

class ModelFollower {
 public:
  using Model = std::shared_ptr<const LoadedModel>;

  /// \param source  outlives this object
  /// \param first   what the daemon serves at the start
  ModelFollower(boost::asio::io_context& loop, const ModelSource& source, LoadedModel first);
  ModelFollower(const ModelFollower&) = delete;
  ModelFollower& operator=(const ModelFollower&) = delete;
  ~ModelFollower();

  /// Null = none can be served now; trouble() says why.
  Model model() const { return trouble_ ? nullptr : loaded_; }
  /// The error for requests, while there is no model.
  ApiError trouble() const;
  /// Called in the loop with a model that was loaded.
  std::function<void(const Model&)> on_loaded;

  /// A channel to a daemon that serves this was opened. In the loop.
  void on_opened(Hive::ModelId id);
  /// Whether its thread asks the daemon, or loads. The destructor waits for it.
  bool is_busy() const { return is_busy_; }
  /// Perhaps there is another daemon. From any thread.
  void check();

 private:
  void ask();
  void on_told(const Expected<DaemonModel>& told);
  void miss(const std::string& why);
  void load(const DaemonModel& told);
  void on_read(const std::string& name, Expected<LoadedModel> read);
  void ask_later();

  boost::asio::io_context& loop_;
  const ModelSource& source_;
  Model loaded_;
  std::optional<std::string> trouble_;
  std::string said_;       ///< the last reason that was logged
  bool is_busy_ = false;   ///< the thread asks or loads
  bool must_ask_ = false;  ///< once more after that
  boost::asio::steady_timer timer_;
  std::shared_ptr<bool> is_alive_ = std::make_shared<bool>(true);
  boost::asio::thread_pool thread_{1};
};

}  // namespace kvhive
