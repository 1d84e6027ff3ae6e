#include "ipc/questions.hpp"

#include "ipc/text_memory.hpp"

namespace kvhive {

Expected<nlohmann::json> ask_status(int socket, std::uint64_t ticket, int timeout_ms) {
  const auto answer = ask_keeper<Status>(socket, StatusRequest{ticket}, {}, timeout_ms);
  if (!answer) return forward_error(answer);
  if (answer->fds.empty())
    return failure(
        Errc::os_error,
        "no file descriptor is left for the daemon's answer; raise the limit (ulimit -n)");
  const auto text = read_text_memory(answer->fds.front());
  if (!text) return forward_error(text);
  return nlohmann::json::parse(*text);
}

}  // namespace kvhive
