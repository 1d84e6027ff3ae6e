#pragma once
// One child process that renders a chat template, and the requests that wait for it. It is started
// when it is needed, and again after it has ended.

#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tl/expected.hpp>
#include <sys/types.h>
#include <vector>

#include "tools/serve/openai/error.hpp"
#include "tools/serve/turns/turn_queue.hpp"

namespace kvhive {

class TemplateProcess : public std::enable_shared_from_this<TemplateProcess> {
 public:
  using IsWanted = std::function<bool()>;
  using Answer = std::function<void(tl::expected<std::string, ApiError>)>;
  struct Job {
    std::string request;
    IsWanted is_wanted;
    Answer answer;
  };

  /// \param config  what the child reads first: the templates, as JSON
  TemplateProcess(boost::asio::io_context& loop, std::string config);
  ~TemplateProcess();

  /// Starts the process, so that the first request need not wait for it.
  void start();
  void render(const Turn& turn, Job job);
  /// Ends it. Jobs, also those that still come, are told so.
  void stop();

 private:
  using ErrorCode = boost::system::error_code;
  /// \param kind  the answer's first byte
  using OnAnswer = void (TemplateProcess::*)(char kind, std::string text);

  void next();
  void ask(const std::string& payload, OnAnswer on_answer);
  void read_size(OnAnswer on_answer);
  void read_answer(OnAnswer on_answer);
  void on_started(char kind, std::string text);
  void on_rendered(char kind, std::string text);
  void on_end();
  void refuse_all(const ApiError& why);
  /// Ends the child; returns its status as waitpid() does.
  int reap();

  const std::string config_;
  boost::asio::local::stream_protocol::socket socket_;
  boost::asio::steady_timer timer_;
  TurnQueue<Job> waiting_;
  std::optional<Job> rendering_;
  std::size_t waiting_bytes_ = 0;
  std::string frame_;  ///< that is being written
  std::vector<char> answer_;
  pid_t pid_ = 0;
  bool is_ready_ = false;  ///< it has the templates
  bool is_busy_ = false;
  bool is_stopped_ = false;
};

}  // namespace kvhive
