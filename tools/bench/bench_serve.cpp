// What HTTP costs, beside a running `kvhive serve`, and what it bears: streams at once, connections
// that send half a request, and streams that are never read.
//
// Usage: bench_serve PORT PID [--brief | --unread | --beams]   The service's port and process;
// --unread, --beams = that part only. KVHIVE_SOCKET names its daemon, which should have one engine:
// then each step of the engine gives a token to all streams, and the token of a stream over HTTP
// can be compared with that of a stream without.

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/unique_fd.hpp"
#include "kvhive/client.hpp"
#include "tools/bench/latency.hpp"
#include "tools/bench/new_request.hpp"
#include "tools/bench/paired.hpp"

namespace kvhive::bench {
namespace {

using Seconds = std::chrono::duration<double>;

[[noreturn]] void fail(const std::string& text) {
  std::fprintf(stderr, "bench_serve: %s\n", text.c_str());
  std::exit(1);
}

double seconds_since(Clock::time_point start) { return Seconds(Clock::now() - start).count(); }

UniqueFd connect_to(std::uint16_t port) {
  UniqueFd socket_fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (!socket_fd ||
      connect(socket_fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
    fail("cannot connect to port " + std::to_string(port) + ": " + strerror(errno));
  return socket_fd;
}

void send_all(const UniqueFd& connection, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(connection.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) fail(std::string("cannot send: ") + strerror(errno));
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
}

/// \param more  of the body's fields
std::string request_text(std::uint32_t seed, std::uint32_t tokens,
                         const std::string& more = "\"temperature\":0,\"stream\":true") {
  const std::string body = "{\"prompt\":\"" + std::to_string(seed) +
                           " In the beginning\",\"max_tokens\":" + std::to_string(tokens) +
                           ",\"ignore_eos\":true," + more + "}";
  return "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\n\r\n" + body;
}

/// Streams over connections of their own, read by one thread.
class Streams {
 public:
  struct Stream {
    UniqueFd connection;
    std::string tail;  ///< of what came, in which an event may begin
    std::vector<Clock::time_point> events;
    Clock::time_point submitted;
    bool is_done = false, is_refused = false;
  };

  void add(std::uint16_t port, std::uint32_t seed, std::uint32_t tokens) {
    Stream& stream = streams_.emplace_back();
    stream.connection = connect_to(port);
    epoll_event event{EPOLLIN, {.u64 = streams_.size() - 1}};
    epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, stream.connection.get(), &event);
    stream.submitted = Clock::now();
    send_all(stream.connection, request_text(seed, tokens));
  }
  void read_to_the_end() {
    for (std::size_t open = streams_.size(); open != 0;) {
      epoll_event ready[256];
      const int count = epoll_wait(epoll_.get(), ready, 256, 120'000);
      if (count <= 0) fail(std::to_string(open) + " streams are silent for two minutes");
      for (int i = 0; i < count; ++i) open -= read(streams_[ready[i].data.u64]);
    }
  }
  const std::vector<Stream>& all() const { return streams_; }
  std::size_t completed() const {
    return static_cast<std::size_t>(
        std::count_if(streams_.begin(), streams_.end(),
                      [](const Stream& stream) { return stream.is_done && !stream.is_refused; }));
  }

 private:
  /// True: it has ended.
  bool read(Stream& stream) {
    char bytes[65536];
    const ssize_t got = recv(stream.connection.get(), bytes, sizeof bytes, 0);
    const auto now = Clock::now();
    if (got > 0) {
      stream.tail.append(bytes, static_cast<std::size_t>(got));
      if (stream.events.empty() && stream.tail.starts_with("HTTP/1.1 5")) stream.is_refused = true;
      // Each read is an arrival: tokens that come together have come at the same time.
      if (stream.tail.find("data: {") != std::string::npos) stream.events.push_back(now);
      stream.is_done = stream.tail.find("data: [DONE]") != std::string::npos;
      stream.tail.erase(0, stream.tail.size() - std::min<std::size_t>(stream.tail.size(), 6));
    }
    if (got > 0 && !stream.is_done && !stream.is_refused) return false;
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, stream.connection.get(), nullptr);
    return true;
  }

  UniqueFd epoll_{epoll_create1(EPOLL_CLOEXEC)};
  std::vector<Stream> streams_;
};

/// Seconds of computing and resident bytes of another process.
struct Usage {
  double cpu_s = 0;
  std::size_t resident = 0;
};
Usage usage_of(pid_t pid) {
  const std::string folder = "/proc/" + std::to_string(pid);
  std::string stat;
  std::getline(std::ifstream(folder + "/stat"), stat);
  unsigned long user = 0, system = 0;
  const std::size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos ||
      std::sscanf(stat.c_str() + name_end + 2,
                  "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system) != 2)
    fail("there is no process " + std::to_string(pid));
  std::size_t all = 0, resident = 0;
  std::ifstream(folder + "/statm") >> all >> resident;
  return {static_cast<double>(user + system) / static_cast<double>(sysconf(_SC_CLK_TCK)),
          resident * static_cast<std::size_t>(sysconf(_SC_PAGESIZE))};
}

/// When the tokens of one stream without HTTP came.
std::vector<Clock::time_point> stream_directly(std::uint32_t tokens) {
  auto client = Client::connect();
  if (!client) fail(client.error().text);
  GenerateRequest request;
  request.prompt = "In the beginning";
  request.max_tokens = tokens;
  request.ignore_eos = true;
  std::vector<Clock::time_point> times;
  const auto result = client->generate(request, [&](const Progress& news) {
    if (!news.tokens.empty()) times.push_back(Clock::now());
  });
  if (!result) fail(result.error().text);
  return times;
}

/// How much later a token comes over HTTP than the same step's token without.
void measure_added(std::uint16_t port, std::size_t count, std::uint32_t tokens) {
  Streams streams;
  std::vector<Clock::time_point> direct;
  std::jthread without([&] { direct = stream_directly(2 * tokens); });
  for (std::size_t i = 0; i < count; ++i) streams.add(port, static_cast<std::uint32_t>(i), tokens);
  streams.read_to_the_end();
  without.join();
  Latencies added, steps;
  for (std::size_t i = 1; i < direct.size(); ++i)
    steps.add(std::chrono::nanoseconds(direct[i] - direct[i - 1]).count());
  for (const Streams::Stream& stream : streams.all())
    for (const Clock::time_point arrival : stream.events) {
      const auto after = std::upper_bound(direct.begin(), direct.end(), arrival);
      if (after == direct.begin() || after == direct.end()) continue;
      added.add(std::chrono::nanoseconds(arrival - after[-1]).count());
    }
  std::printf(
      "  %zu streams beside one without HTTP: a token comes p50 %.2f, p99 %.2f ms later; "
      "a step takes p50 %.2f ms\n",
      count, added.quantile_us(0.5) / 1e3, added.quantile_us(0.99) / 1e3,
      steps.quantile_us(0.5) / 1e3);
}

void measure_many(std::uint16_t port, pid_t pid, std::size_t count, std::uint32_t tokens) {
  const Usage before = usage_of(pid);
  const auto start = Clock::now();
  Streams streams;
  for (std::size_t i = 0; i < count; ++i) streams.add(port, static_cast<std::uint32_t>(i), tokens);
  streams.read_to_the_end();
  const double seconds = seconds_since(start);
  const Usage after = usage_of(pid);
  const double all_tokens = static_cast<double>(streams.completed()) * tokens;
  std::printf(
      "  %zu streams at once, %u tokens each: %zu complete in %.1f s, %.0f tokens/s; the "
      "service took %.1f us of a processor a token, and has %.0f MiB\n",
      count, tokens, streams.completed(), seconds, all_tokens / seconds,
      (after.cpu_s - before.cpu_s) / all_tokens * 1e6,
      static_cast<double>(after.resident) / 0x1p20);
}

/// First tokens of streams one after another.
void first_tokens(std::uint16_t port, std::size_t count, Latencies& first) {
  for (std::size_t i = 0; i < count; ++i) {
    Streams one;
    one.add(port, static_cast<std::uint32_t>(i), 4);
    one.read_to_the_end();
    if (one.completed() != 1) fail("a request was not answered");
    first.add(std::chrono::nanoseconds(one.all()[0].events.at(0) - one.all()[0].submitted).count());
  }
}

void measure_halves(std::uint16_t port, std::size_t count, std::size_t asked) {
  Latencies calm, beside;
  first_tokens(port, asked, calm);
  std::vector<UniqueFd> halves;
  for (std::size_t i = 0; i < count; ++i) {
    halves.push_back(connect_to(port));
    send(halves.back().get(), "POST /v1/completions HTTP/1.1\r\nContent-Len", 43, MSG_NOSIGNAL);
  }
  first_tokens(port, asked, beside);
  std::printf(
      "  %zu connections that send half a request: others' first token p50 %.2f, p99 %.2f "
      "ms; without them %.2f and %.2f\n",
      count, beside.quantile_us(0.5) / 1e3, beside.quantile_us(0.99) / 1e3,
      calm.quantile_us(0.5) / 1e3, calm.quantile_us(0.99) / 1e3);
}

/// How long an answer takes that comes whole.
double seconds_of_answer(std::uint16_t port, const std::string& request) {
  constexpr std::string_view kLength = "Content-Length: ", kBody = "\r\n\r\n";
  const UniqueFd connection = connect_to(port);
  const auto start = Clock::now();
  send_all(connection, request);
  std::string answer;
  char bytes[65536];
  const auto is_whole = [&] {
    const std::size_t length = answer.find(kLength), body = answer.find(kBody);
    return body != std::string::npos && length < body &&
           answer.size() - body - kBody.size() >=
               std::strtoull(answer.c_str() + length + kLength.size(), nullptr, 10);
  };
  while (!is_whole()) {
    const ssize_t got = recv(connection.get(), bytes, sizeof bytes, 0);
    if (got <= 0) fail("the service has closed a connection");
    answer.append(bytes, static_cast<std::size_t>(got));
  }
  if (!answer.starts_with("HTTP/1.1 200")) fail("refused: " + answer);
  return seconds_since(start);
}

/// A search beside as many sampled answers, by turns.
void measure_beams(std::uint16_t port, std::uint32_t tokens, std::size_t rounds) {
  for (const std::size_t width : {1, 4, 10}) {
    std::vector<double> ratios, times;
    for (std::size_t round = 0; round < rounds; ++round) {
      const auto seed = static_cast<std::uint32_t>(10'000 * width + round);
      const std::string count = "\"n\":" + std::to_string(width);
      const double sampled = seconds_of_answer(
          port, request_text(seed, tokens, count + ",\"temperature\":1,\"seed\":1"));
      times.push_back(seconds_of_answer(
          port, request_text(seed + 5'000, tokens, count + ",\"use_beam_search\":true")));
      ratios.push_back(times.back() / sampled);
    }
    std::printf("%3zu beams of %u tokens: %.1f ms, %.2f times as many sampled answers\n", width,
                tokens, 1e3 * median(times), median(ratios));
  }
}

/// Waits until the service has no request with an engine.
void wait_until_idle(std::uint16_t port) {
  constexpr std::string_view kIdle = "\nkvhive_serve_requests_running 0\n";
  for (const auto start = Clock::now(); seconds_since(start) < 60;) {
    const UniqueFd connection = connect_to(port);
    send_all(connection,
             "GET /metrics?view=service HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    std::string answer;
    char bytes[65536];
    for (ssize_t got; (got = recv(connection.get(), bytes, sizeof bytes, 0)) > 0;)
      answer.append(bytes, static_cast<std::size_t>(got));
    if (answer.find(kIdle) != std::string::npos) return;
  }
  fail("requests are still running a minute after their clients have gone");
}

/// Long streams that are under way beside others.
class LongStreams {
 public:
  enum class Are : std::uint8_t { read, never_read };

  LongStreams(std::uint16_t port, std::size_t count, Are are) {
    for (std::size_t i = 0; i < count; ++i) {
      connections_.push_back(connect_to(port));
      const UniqueFd& connection = connections_.back();
      // So small that what is not read stays with the service.
      const int room = 2048;
      if (are == Are::never_read)
        setsockopt(connection.get(), SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
      send_all(connection, request_text(static_cast<std::uint32_t>(1000 + i), 3900));
    }
    // Each is answered: the first bytes have come, and stay where they are.
    for (const UniqueFd& connection : connections_) {
      char byte;
      if (recv(connection.get(), &byte, 1, MSG_PEEK) != 1) fail("a long stream was not answered");
    }
    if (are == Are::read) reader_ = std::jthread([this] { read(); });
  }
  ~LongStreams() { stops_ = true; }

 private:
  void read() {
    const UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
    for (std::size_t i = 0; i < connections_.size(); ++i) {
      epoll_event event{EPOLLIN, {.u64 = i}};
      epoll_ctl(epoll.get(), EPOLL_CTL_ADD, connections_[i].get(), &event);
    }
    while (!stops_) {
      epoll_event ready[256];
      char bytes[65536];
      const int count = epoll_wait(epoll.get(), ready, 256, 10);
      for (int i = 0; i < count; ++i)
        (void)recv(connections_[ready[i].data.u64].get(), bytes, sizeof bytes, MSG_DONTWAIT);
    }
  }

  std::vector<UniqueFd> connections_;
  std::atomic<bool> stops_{false};
  std::jthread reader_;  ///< ends before what it reads
};

/// First tokens of others beside long streams that nobody reads, beside as many that are read, and
/// beside none, in rounds of all three.
void measure_unread(std::uint16_t port, std::size_t count, std::size_t rounds, std::size_t asked) {
  using Are = LongStreams::Are;
  const std::pair<const char*, std::optional<Are>> kinds[] = {
      {"none", std::nullopt}, {"read", Are::read}, {"never read", Are::never_read}};
  std::vector<double> p50[3], p99[3], to_read[2];
  for (std::size_t round = 0; round < rounds; ++round) {
    for (std::size_t kind = 0; kind < 3; ++kind) {
      Latencies first;
      {
        std::optional<LongStreams> beside;
        if (kinds[kind].second) beside.emplace(port, count, *kinds[kind].second);
        first_tokens(port, asked, first);
      }
      wait_until_idle(port);
      p50[kind].push_back(first.quantile_us(0.5) / 1e3);
      p99[kind].push_back(first.quantile_us(0.99) / 1e3);
    }
    to_read[0].push_back(p50[2].back() / p50[1].back());
    to_read[1].push_back(p99[2].back() / p99[1].back());
  }
  std::printf("  others' first tokens beside %zu long streams, %zu rounds, medians:", count,
              rounds);
  for (std::size_t kind = 0; kind < 3; ++kind)
    std::printf(" %s p50 %.2f, p99 %.2f ms;", kinds[kind].first, median(p50[kind]),
                median(p99[kind]));
  std::printf(" never read to read: p50 %.2f, p99 %.2f times\n", median(to_read[0]),
              median(to_read[1]));
}

}  // namespace
}  // namespace kvhive::bench

int main(int argc, char** argv) {
  using namespace kvhive::bench;
  setvbuf(stdout, nullptr, _IOLBF, 0);
  if (argc < 3) fail("usage: bench_serve PORT PID [--brief | --unread | --beams]");
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  const auto port = static_cast<std::uint16_t>(std::atoi(argv[1]));
  const pid_t pid = std::atoi(argv[2]);
  const std::string part = argc > 3 ? argv[3] : "";
  const bool is_brief = part == "--brief";
  std::printf("HTTP: kvhive serve over the demo model\n");
  if (part == "--unread") {
    measure_unread(port, 64, 7, 100);
    return 0;
  }
  if (part == "--beams") {
    measure_beams(port, 64, 15);
    return 0;
  }
  for (const std::size_t count : {1, 32}) measure_added(port, count, is_brief ? 20 : 500);
  measure_many(port, pid, is_brief ? 50 : 2000, is_brief ? 8 : 64);
  measure_halves(port, is_brief ? 100 : 10'000, is_brief ? 5 : 200);
  measure_beams(port, is_brief ? 4 : 64, is_brief ? 1 : 15);
  measure_unread(port, is_brief ? 4 : 64, is_brief ? 1 : 7, is_brief ? 3 : 100);
}
