#include "tools/serve/hive/lane.hpp"

#include <fcntl.h>

#include <boost/asio/post.hpp>
#include <utility>
#include <vector>

namespace kvhive {
namespace asio = boost::asio;

// The loop closes its descriptor, and the client its own.
Lane::Lane(asio::io_context& loop, Client client, std::uint64_t model, OnChange on_change)
    : news_(loop, fcntl(client.descriptor(), F_DUPFD_CLOEXEC, 0)),
      client_(std::move(client)),
      model_(model),
      on_change_(std::move(on_change)),
      bytes_(client_.status().channel_bytes) {}

void Lane::start() { watch(); }

void Lane::watch() {
  news_.async_wait(asio::posix::stream_descriptor::wait_read,
                   [self = shared_from_this()](boost::system::error_code error) {
                     if (!error && !self->is_lost_) self->on_news();
                   });
}

Result<RequestId> Lane::submit(const GenerateRequest& request, Listener listener) {
  const auto submitted = client_.submit(request);
  if (!submitted) return submitted;
  listeners_.emplace(*submitted, std::move(listener));
  has_discarded_ = false;
  return submitted;
}

void Lane::discard(RequestId request) {
  if (listeners_.erase(request) == 0) return;
  held_.erase(request);
  client_.discard(request);
  has_discarded_ = true;
}

void Lane::on_news() {
  const auto woken = client_.wait(std::chrono::milliseconds(0));
  if (woken) watch();  // first: whatever a listener throws, the others' news are heard
  std::vector<RequestId> requests;
  for (const auto& [request, listener] : listeners_) requests.push_back(request);
  bool has_room = has_discarded_;  // perhaps: nothing is told of what was discarded
  for (const RequestId request : requests) has_room |= read(request);
  if (!woken) return lose(woken.error());
  if (has_room) on_change_(*this);
}

/// Tells what is new of a request. Whether it has ended.
bool Lane::read(RequestId request) {
  const auto found = listeners_.find(request);
  // Another's listener may have discarded it, or had it held.
  if (found == listeners_.end() || held_.contains(request)) return false;
  const auto news = client_.read(request);
  if (!news) return false;
  const bool has_ended = news->reason != Finish::none;
  const Listener listener = found->second;
  if (has_ended) listeners_.erase(found);
  listener(*news);
  return has_ended;
}

void Lane::go_on(RequestId request) {
  if (held_.erase(request) == 0) return;
  asio::post(news_.get_executor(), [self = shared_from_this(), request] {
    if (self->news_.is_open() && !self->is_lost_ && self->read(request)) self->on_change_(*self);
  });
}

void Lane::lose(const ClientError& why) {
  is_lost_ = true;
  held_.clear();
  for (const auto& [request, listener] : std::exchange(listeners_, {})) {
    Progress end;
    end.request = request;
    end.reason = Finish::error;
    end.error = why;
    listener(end);
  }
  on_change_(*this);
}

}  // namespace kvhive
