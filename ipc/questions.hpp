#pragma once
// Questions and orders that a process of the daemon's own user sends to the keeper, after it was
// welcomed as an inspector. Each carries a ticket of the asker's.

#include <nlohmann/json.hpp>
#include <string_view>

#include "ipc/protocol.hpp"

namespace kvhive {

/// Waits for the answer to the question with this ticket. What else comes is passed over: a killed
/// keeper may have answered an earlier one already, and its successor again. Errors: what the
/// keeper refuses it with; not_running = no answer came in time.
///
/// \param timeout_ms  -1 = wait for ever
template <class Answer>
[[nodiscard]] Expected<Packet> await_answer(int socket, std::uint64_t ticket,
                                            int timeout_ms = kAnswerMs) {
  while (true) {
    auto answer = receive_answer(socket, timeout_ms);
    if (!answer) return forward_error(answer);
    if (!*answer) return failure(Errc::peer_died, "the daemon hung up instead of answering");
    if (const auto refused = (*answer)->template as<Refused>())
      return tl::unexpected(error_of(*refused));
    const auto message = (*answer)->template as<Answer>();
    if (message && message->ticket == ticket) return std::move(**answer);
  }
}

/// Sends a question and waits for its answer.
template <class Answer, class Question>
[[nodiscard]] Expected<Packet> ask_keeper(int socket, const Question& question,
                                          std::string_view tail = {}, int timeout_ms = kAnswerMs) {
  if (auto sent = send_packet(socket, question, {}, tail); !sent) return forward_error(sent);
  return await_answer<Answer>(socket, question.ticket, timeout_ms);
}

/// What the keeper knows: which processes run, which clients are connected, with which options.
[[nodiscard]] Expected<nlohmann::json> ask_status(int socket, std::uint64_t ticket,
                                                  int timeout_ms = kAnswerMs);

}  // namespace kvhive
