#include "tools/serve/hive/lane.hpp"

#include <fcntl.h>

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
  client_.discard(request);
  has_discarded_ = true;
}

void Lane::on_news() {
  const auto woken = client_.wait(std::chrono::milliseconds(0));
  if (woken) watch();  // first: whatever a listener throws, the others' news are heard
  std::vector<RequestId> requests;
  for (const auto& [request, listener] : listeners_) requests.push_back(request);
  bool has_room = has_discarded_;  // perhaps: nothing is told of what was discarded
  for (const RequestId request : requests) {
    const auto found = listeners_.find(request);
    if (found == listeners_.end()) continue;  // discarded by another's listener
    const auto news = client_.read(request);
    if (!news) continue;
    const bool has_ended = news->reason != Finish::none;
    const Listener listener = found->second;
    if (has_ended) listeners_.erase(found);
    has_room |= has_ended;
    listener(*news);
  }
  if (!woken) return lose(woken.error());
  if (has_room) on_change_(*this);
}

void Lane::lose(const ClientError& why) {
  is_lost_ = true;
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
