#include "tools/serve/turns/background.hpp"

#include <boost/asio/post.hpp>
#include <exception>
#include <memory>
#include <utility>

namespace kvhive {
namespace asio = boost::asio;

Background::~Background() {
  for (Lane& lane : lanes_) lane.thread.join();
}

void Background::run(const Turn& turn, Job job) {
  Lane& lane = lanes_[job.bytes > kShortBytes ? 1 : 0];
  lane.waiting.push(turn, std::move(job));
  if (!lane.is_busy) next(lane);
}

/// One job at a time is given to the thread: the order of the others is not settled yet.
void Background::next(Lane& lane) {
  lane.is_busy = false;
  while (!lane.waiting.empty()) {
    auto job = std::make_shared<Job>(lane.waiting.pop());
    if (!job->is_wanted()) continue;
    lane.is_busy = true;
    asio::post(lane.thread, [this, &lane, job] {
      std::exception_ptr failure;
      try {
        job->work();
      } catch (...) {
        failure = std::current_exception();
      }
      asio::post(loop_, [this, &lane, job, failure] {
        next(lane);
        if (failure) std::rethrow_exception(failure);
        if (job->is_wanted()) job->on_done();
      });
    });
    return;
  }
}

}  // namespace kvhive
