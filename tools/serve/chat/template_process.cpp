#include "tools/serve/chat/template_process.hpp"

#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/unique_fd.hpp"
#include "tools/serve/chat/render_chat.hpp"

namespace kvhive {
namespace {

namespace asio = boost::asio;

/// Debian's own, which has Debian's modules; another python3 may come first in PATH.
constexpr const char* kPython = "/usr/bin/python3";
constexpr const char* kHint =
    "chat needs /usr/bin/python3 with the packages python3-jinja2 and python3-seccomp";

constexpr std::size_t kMostWaiting = 4096;
constexpr std::size_t kMostWaitingBytes = std::size_t{128} << 20;
constexpr std::size_t kMostAnswerBytes = std::size_t{256} << 20;
/// The child counts its own seconds of computing. This one ends a child that does not compute.
constexpr std::chrono::seconds kPatience{60};

constexpr int kScript = 3;  ///< the child's descriptor

std::string frame_of(const std::string& payload) {
  const auto size = static_cast<std::uint32_t>(payload.size());
  std::string frame;
  for (int shift = 24; shift >= 0; shift -= 8) frame += static_cast<char>(size >> shift);
  return frame + payload;
}

std::size_t size_of(const std::vector<char>& head) {
  std::size_t size = 0;
  for (const char byte : head) size = size << 8 | static_cast<unsigned char>(byte);
  return size;
}

/// Without a name that others could put something else under.
UniqueFd script() {
  UniqueFd file(memfd_create("kvhive render_chat.py", MFD_CLOEXEC));
  if (!file || write(file.get(), kRenderChat, std::strlen(kRenderChat)) !=
                   static_cast<ssize_t>(std::strlen(kRenderChat)))
    return UniqueFd();
  return file;
}

/// Returns the child's pid, or 0. It gets one socket as its input and output, and the script; none
/// of this process's connections; its own process group, so that Ctrl-C is for this process.
pid_t spawn_python(int socket) {
  const UniqueFd file = script();
  if (!file) return 0;
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  // A descriptor that is put where it is already would stay close-on-exec: none is that low.
  posix_spawn_file_actions_adddup2(&files, socket, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&files, socket, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&files, file.get(), kScript);
  posix_spawn_file_actions_addclosefrom_np(&files, kScript + 1);
  posix_spawnattr_t how;
  posix_spawnattr_init(&how);
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&how, &none);
  posix_spawnattr_setsigdefault(&how, &all);
  posix_spawnattr_setpgroup(&how, 0);
  posix_spawnattr_setflags(&how,
                           POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  // Isolated: it loads nothing from the working directory or from what the environment names. Its
  // whole path, since Python looks for a name in PATH, and takes the modules that lie beside it.
  std::array<char*, 4> arguments{const_cast<char*>(kPython), const_cast<char*>("-I"),
                                 const_cast<char*>("/dev/fd/3"), nullptr};
  pid_t pid = 0;
  const int failed = posix_spawn(&pid, kPython, &files, &how, arguments.data(), environ);
  posix_spawnattr_destroy(&how);
  posix_spawn_file_actions_destroy(&files);
  return failed == 0 ? pid : 0;
}

std::string how_it_ended(int status) {
  return WIFSIGNALED(status) ? std::string("was killed by ") + strsignal(WTERMSIG(status))
                             : "ended with code " + std::to_string(WEXITSTATUS(status));
}

}  // namespace

TemplateProcess::TemplateProcess(asio::io_context& loop, std::string config)
    : config_(std::move(config)), socket_(loop), timer_(loop) {}

TemplateProcess::~TemplateProcess() { reap(); }

void TemplateProcess::start() {
  if (pid_ != 0 || is_stopped_) return;
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return refuse_all({503, "no descriptor is left to render messages; try again"});
  const UniqueFd theirs(ends[1]);
  socket_.assign(asio::local::stream_protocol(), ends[0]);
  pid_ = spawn_python(theirs.get());
  if (pid_ == 0) {
    socket_.close();
    return refuse_all(
        {501, std::string("the process that renders messages cannot be started: ") + kHint});
  }
  is_ready_ = false;
  ask(config_, &TemplateProcess::on_started);
}

void TemplateProcess::stop() {
  is_stopped_ = true;
  timer_.cancel();
  reap();
  const std::optional<Job> lost = std::exchange(rendering_, std::nullopt);
  if (lost && lost->is_wanted()) lost->answer(tl::unexpected(another_model()));
  refuse_all(another_model());
}

void TemplateProcess::render(const Turn& turn, Job job) {
  if (is_stopped_) return job.answer(tl::unexpected(another_model()));
  if (waiting_.size() >= kMostWaiting || waiting_bytes_ + job.request.size() > kMostWaitingBytes)
    return job.answer(tl::unexpected(ApiError{503,
                                              "too many messages wait to be rendered; try again",
                                              {},
                                              std::chrono::milliseconds(1000)}));
  waiting_bytes_ += job.request.size();
  waiting_.push(turn, std::move(job));
  if (pid_ == 0) return start();
  if (!is_busy_) next();
}

void TemplateProcess::next() {
  while (!waiting_.empty()) {
    Job job = waiting_.pop();
    waiting_bytes_ -= job.request.size();
    if (!job.is_wanted()) continue;
    rendering_ = std::move(job);
    return ask(rendering_->request, &TemplateProcess::on_rendered);
  }
}

// -- the child's frames ---------------------------------------------------------------------------

void TemplateProcess::ask(const std::string& payload, OnAnswer on_answer) {
  is_busy_ = true;
  frame_ = frame_of(payload);
  timer_.expires_after(kPatience);
  timer_.async_wait([weak = weak_from_this()](ErrorCode error) {
    const auto self = weak.lock();
    if (!error && self && self->pid_ != 0) kill(self->pid_, SIGKILL);
  });
  asio::async_write(socket_, asio::buffer(frame_),
                    [self = shared_from_this(), on_answer](ErrorCode error, std::size_t) {
                      if (error) return self->on_end();
                      self->read_size(on_answer);
                    });
}

void TemplateProcess::read_size(OnAnswer on_answer) {
  answer_.resize(4);
  asio::async_read(socket_, asio::buffer(answer_),
                   [self = shared_from_this(), on_answer](ErrorCode error, std::size_t) {
                     if (error) return self->on_end();
                     const std::size_t size = size_of(self->answer_);
                     if (size == 0 || size > kMostAnswerBytes) return self->on_end();
                     self->answer_.resize(size);
                     self->read_answer(on_answer);
                   });
}

void TemplateProcess::read_answer(OnAnswer on_answer) {
  asio::async_read(socket_, asio::buffer(answer_),
                   [self = shared_from_this(), on_answer](ErrorCode error, std::size_t) {
                     if (error) return self->on_end();
                     self->timer_.cancel();
                     self->is_busy_ = false;
                     (self.get()->*on_answer)(self->answer_.front(),
                                              {self->answer_.begin() + 1, self->answer_.end()});
                   });
}

void TemplateProcess::on_started(char kind, std::string text) {
  if (is_stopped_) return;
  if (kind != 0) {
    reap();
    return refuse_all({501, "the model's chat template is wrong: " + text +
                                "; give another with --chat-template"});
  }
  is_ready_ = true;
  next();
}

void TemplateProcess::on_rendered(char kind, std::string text) {
  if (is_stopped_) return;
  const Job done = std::move(*std::exchange(rendering_, std::nullopt));
  next();
  if (!done.is_wanted()) return;
  if (kind == 0) return done.answer(std::move(text));
  const std::size_t field = text.find('\n');  // what is wrong, behind the field's name
  done.answer(tl::unexpected(ApiError{400, text.substr(field + 1), text.substr(0, field)}));
}

void TemplateProcess::on_end() {
  if (is_stopped_ || pid_ == 0) return;
  const bool was_ready = std::exchange(is_ready_, false);
  is_busy_ = false;
  timer_.cancel();
  const int status = reap();
  if (!was_ready)
    return refuse_all({501, "the process that renders messages " + how_it_ended(status) +
                                " as it was started: " + kHint});
  const Job lost = std::move(*std::exchange(rendering_, std::nullopt));
  if (!waiting_.empty()) start();
  if (!lost.is_wanted()) return;
  const bool took_long = WIFSIGNALED(status) && WTERMSIG(status) == SIGPROF;
  lost.answer(tl::unexpected(
      took_long
          ? ApiError{400, "messages: rendering them takes more than 5 s; shorten them", "messages"}
          : ApiError{500, "the process that renders messages " + how_it_ended(status) +
                              "; try again, and tell the operator if it stays so"}));
}

void TemplateProcess::refuse_all(const ApiError& why) {
  waiting_bytes_ = 0;
  TurnQueue<Job> refused = std::exchange(waiting_, {});
  while (!refused.empty())
    if (const Job job = refused.pop(); job.is_wanted()) job.answer(tl::unexpected(why));
}

int TemplateProcess::reap() {
  if (pid_ == 0) return 0;
  ErrorCode ignored;
  socket_.close(ignored);
  kill(pid_, SIGKILL);
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) continue;
  pid_ = 0;
  return status;
}

}  // namespace kvhive
