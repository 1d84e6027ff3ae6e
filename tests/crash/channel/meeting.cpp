#include "tests/crash/channel/meeting.hpp"

namespace kvhive::testing {

Complaints meet(ChannelStage& stage, const Victim& victim, Side peer, const PeersDeed& deed) {
  victim.image().put(stage.copy());
  StoryStatus& status = stage.status() = {};
  TracedChild copy = victim.child().clone();
  stage.move_to_copy(copy);
  TracedChild other(
      [&] {
        stage.move_to_copy();
        deed.run(stage);
      },
      [&] { take_turns(stage, peer); });
  if (!other.run()) {
    status.complain("the peer ended by itself");
  } else if (!copy.run()) {
    status.complain("the victim ended by itself");
  } else {
    TracedChild& client = peer == Side::client ? other : copy;
    TracedChild& engine = peer == Side::client ? copy : other;
    conduct(
        status, [&] { return client.run(); }, [&] { return engine.run(); });
  }
  Complaints complaints = complaints_of(status);
  for (std::string& complaint : complaints) complaint = deed.name + ": " + complaint;
  return complaints;
}

}  // namespace kvhive::testing
