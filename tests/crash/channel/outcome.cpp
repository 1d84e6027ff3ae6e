#include "tests/crash/channel/outcome.hpp"

#include "tests/support/child_process.hpp"

namespace kvhive::testing {
namespace {

/// Enough for: the engine hears, finds that another has what it has, hears, takes it back, ends all
/// that it has, and the client reads.
constexpr int kRounds = 6;

/// Runs `body` in a process of its own that works on the copy, and returns the complaints. The
/// process has the private state that both sides had before the operation.
template <class Body>
Complaints examine(ChannelStage& stage, const ChannelImage& left, const std::string& situation,
                   const Body& body) {
  left.put(stage.copy());
  stage.status() = {};
  ChildProcess examiner([&] {
    stage.move_to_copy();
    body();
  });
  const int status = examiner.wait();
  Complaints complaints = complaints_of(stage.status());
  if (!ended_well(status))
    complaints.push_back("a survivor ended with status " + std::to_string(status));
  for (std::string& complaint : complaints) complaint = situation + ": " + complaint;
  return complaints;
}

/// \param must_read_first  the client reads what the dead engine left, before another takes over
Complaints after_death_of_engine(ChannelStage& stage, const ChannelImage& left,
                                 bool must_read_first) {
  const char* situation = must_read_first ? "the engine died, the client read at once"
                                          : "the engine died, the client slept";
  return examine(stage, left, situation, [&] {
    if (must_read_first) stage.client().read_all();
    stage.replace_engine();
    conduct(
        stage.status(), [&] { return stage.client().turn(), true; },
        [&] { return stage.engine().turn(), true; });
  });
}

/// \param dies_too  so that another engine takes the dead client's channel over
Complaints after_death_of_client(ChannelStage& stage, const ChannelImage& left, bool dies_too) {
  const char* situation = dies_too ? "client and engine died" : "the client died";
  return examine(stage, left, situation, [&] {
    if (dies_too) stage.replace_engine();
    stage.engine().hear();
    stage.engine().end_all();
    // No request may end in an error: each was submitted whole, even by a client that was killed.
    for (std::uint32_t slot = 0; slot < kChannelSlots; ++slot) {
      const AnswerSlot& answer = stage.client().answer(slot);
      if (answer.state.load().phase() == Phase::finished && answer.reason == FinishReason::error)
        stage.status().complain("the engine refused a request: " +
                                std::string(answer.error_text.data()));
    }
    stage.engine().close();
  });
}

}  // namespace

Complaints complaints_of(const StoryStatus& status) {
  if (status.complaints == 0) return {};
  return {std::string(status.first) + " (and " + std::to_string(status.complaints - 1) + " more)"};
}

void conduct(StoryStatus& status, const Turn& client, const Turn& engine) {
  const auto take_turns = [&](const Turn& first, const Turn& second) {
    for (int round = 0; round < kRounds; ++round)
      if (!first() || !second()) return status.complain("a side has ended by itself");
  };
  take_turns(engine, client);
  if (status.running != 0) status.complain("the engine still has requests");
  status.must_conclude = 1;
  take_turns(client, engine);
  if (status.open != 0 && status.complaints == 0)
    status.complain("a request that was submitted later never ends");
}

Complaints after_death_of_engine(ChannelStage& stage, const ChannelImage& left) {
  Complaints complaints = after_death_of_engine(stage, left, false);
  for (std::string& more : after_death_of_engine(stage, left, true))
    complaints.push_back(std::move(more));
  return complaints;
}

Complaints after_death_of_client(ChannelStage& stage, const ChannelImage& left) {
  Complaints complaints = after_death_of_client(stage, left, false);
  for (std::string& more : after_death_of_client(stage, left, true))
    complaints.push_back(std::move(more));
  return complaints;
}

}  // namespace kvhive::testing
