#include "tests/serve/served.hpp"

#include <netinet/in.h>
#include <sys/socket.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utility>

#include "base/check.hpp"
#include "base/unique_fd.hpp"

namespace kvhive::testing {

Service::Service(const std::string& socket, std::vector<std::string> flags, int descriptors,
                 int err) {
  int ends[2];
  KV_CHECK(pipe2(ends, O_CLOEXEC) == 0);
  const UniqueFd out(ends[0]);
  UniqueFd in(ends[1]);
  flags.insert(flags.begin(), {"serve", "--socket", socket, "--port", "0"});
  if (descriptors == 0) {
    pid_ = spawn(program("kvhive"), flags, in.get(), err);
  } else {
    const std::string limited = "ulimit -n " + std::to_string(descriptors) + "; exec \"$0\" \"$@\"";
    flags.insert(flags.begin(), {"-c", limited, program("kvhive")});
    pid_ = spawn("/bin/sh", flags, in.get(), err);
  }
  in = UniqueFd();
  std::string line;  // there may be warnings before the one that is waited for
  for (char letter; read(out.get(), &letter, 1) == 1;) {
    if (letter != '\n')
      line += letter;
    else if (line.starts_with("ready: "))
      break;
    else
      line.clear();
  }
  const std::size_t colon = line.rfind(':');
  KV_CHECK(colon != std::string::npos, line);
  port_ = static_cast<std::uint16_t>(std::stoi(line.substr(colon + 1)));
}

Service::~Service() {
  if (pid_ == 0) return;
  signal_process(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

int Service::stop() {
  signal_process(pid_, SIGTERM);
  int status = 0;
  waitpid(std::exchange(pid_, 0), &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

bool Service::listens() const {
  const UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port_);
  return ::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
}

HttpReply Service::ask(const std::string& request) const {
  HttpClient client = connect();
  client.send(request);
  auto reply = client.receive();
  KV_CHECK(reply.has_value());
  return std::move(*reply);
}

}  // namespace kvhive::testing
