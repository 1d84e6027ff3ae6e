// Death and standstill at every system call of the keeper.
//
// README.md says why that stands for every instruction, and how to run more of it.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <numeric>
#include <random>

#include "base/check.hpp"
#include "ipc/pidfd.hpp"
#include "tests/crash/identifier.hpp"
#include "tests/crash/settings.hpp"
#include "tests/crash/keeper/scenarios.hpp"
#include "tests/crash/keeper/system_call_tracer.hpp"
#include "tests/support/child_process.hpp"
#include "tests/support/playing_user.hpp"
#include "tests/support/sanitizers.hpp"
#include "tests/tools/footprint.hpp"
#include "tools/keeper/succession/front.hpp"

namespace kvhive::testing {
namespace {

struct Tally {
  std::size_t boundaries = 0;  ///< system calls of the undisturbed scenario
  std::size_t harms = 0;       ///< kills or stops
  std::size_t violations = 0;
  std::string first;

  void add(std::size_t boundary, const Complaints& complaints) {
    ++harms;
    if (complaints.empty() || violations++ != 0) return;
    first = "at boundary " + std::to_string(boundary) + ": " + ::testing::PrintToString(complaints);
  }
  void print(const std::string& scenario, const std::string& harm) const {
    std::printf("| %s | %s | %zu | %zu | %zu |\n", scenario.c_str(), harm.c_str(), boundaries,
                harms, violations);
  }
};

/// All boundaries, or a sample of them: KVHIVE_BOUNDARIES, or as many as a usual test run has time
/// for.
std::vector<std::size_t> chosen(std::size_t boundaries, std::size_t of_a_dose,
                                std::mt19937_64& random) {
  std::vector<std::size_t> all(boundaries);
  std::iota(all.begin(), all.end(), std::size_t{0});
  if (must_kill_everywhere()) return all;
  if (const char* wanted = std::getenv("KVHIVE_BOUNDARIES"))
    of_a_dose = std::strtoul(wanted, nullptr, 10);
  std::vector<std::size_t> sample;
  std::sample(all.begin(), all.end(), std::back_inserter(sample), of_a_dose, random);
  return sample;
}

Progress read_to_the_end(Client& client, RequestId number) {
  Progress whole;
  while (whole.reason == Finish::none) {
    if (!client.wait()) break;
    const Progress news = *client.read(number);
    whole.tokens.insert(whole.tokens.end(), news.tokens.begin(), news.tokens.end());
    whole.reason = news.reason;
  }
  return whole;
}

bool has_zombie(pid_t keeper) {
  const std::vector<pid_t> children = children_of(keeper);
  return std::any_of(children.begin(), children.end(),
                     [](pid_t child) { return state_of(child) == 'Z'; });
}

/// Lines of /proc/PID/maps: memory that is shared and may be written.
std::vector<std::string> shared_mappings_of(pid_t pid) {
  std::vector<std::string> found;
  std::ifstream maps("/proc/" + std::to_string(pid) + "/maps");
  for (std::string line; std::getline(maps, line);) {
    const std::string rights = line.substr(line.find(' ') + 1, 4);
    // Nobody but front and keepers has the ledger.
    const bool is_ledger = line.find("memfd:kvhived-ledger") != std::string::npos;
    if (rights[1] == 'w' && rights[3] == 's' && !is_ledger) found.push_back(line);
  }
  return found;
}

/// Tokens that an undisturbed daemon gives.
struct Reference {
  std::vector<TokenId> of_short, of_long;

  static const Reference& of(const Scene& scene) {
    static const Reference reference = [&] {
      Client client = std::move(*scene.connect(1));
      return Reference{ids(*client.generate(short_request())),
                       ids(*client.generate(long_request()))};
    }();
    return reference;
  }
};

void append(Complaints& to, Complaints more) {
  std::move(more.begin(), more.end(), std::back_inserter(to));
}

/// A new client is served, with the right tokens.
Complaints service(const Scene& scene) {
  if (!is_alive(scene.front())) return {"the daemon has ended"};
  auto client = scene.connect(1);
  if (!client) return {"a new client: " + client.error().text};
  const auto result = client->generate(short_request());
  if (!result) return {"a new client's request: " + result.error().text};
  if (ids(*result) != Reference::of(scene).of_short) return {"a new client gets other tokens"};
  return {};
}

/// The wait status that the keeper ends with; nothing = it goes on.
std::optional<int> status_after(Ending ending) {
  switch (ending) {
    case Ending::serves: return std::nullopt;
    case Ending::hands_over: return kExitHandsOver << 8;
    case Ending::ends: return 0;
  }
  return std::nullopt;
}

/// The actor, and a way to wait for its end.
class Actor {
 public:
  explicit Actor(const std::function<void()>& act)
      : process_(act), pid_(process_.pid()), pidfd_(pidfd_of(pid_).value()) {}
  pid_t pid() const { return pid_; }
  const UniqueFd& end() const { return pidfd_; }
  /// Its status; nothing = it hangs.
  std::optional<int> wait() {
    if (!wait_for_end(pidfd_, static_cast<int>(kHang.count()) * 1000)) return std::nullopt;
    return process_.wait();
  }

 private:
  ChildProcess process_;
  pid_t pid_;
  UniqueFd pidfd_;
};

class TracedKeeper : public ::testing::Test {
 protected:
  void SetUp() override {
    if (kUnderSanitizer) GTEST_SKIP() << "NOT RUN: sanitizers do not work under ptrace";
    if (!SystemCallTracer::is_allowed()) GTEST_SKIP() << "NOT RUN: ptrace is forbidden";
  }

  /// A daemon that serves; the same one as long as it is unharmed.
  Scene& scene(const std::vector<std::string>& flags = {}) {
    if (!scene_) scene_ = std::make_unique<Scene>(flags);
    if (scene_->front() == 0) scene_->start();
    return *scene_;
  }

  std::unique_ptr<Scene> scene_;
  std::mt19937_64 random_{chosen_seed()};
  Tally tally_;
};

class EverySystemCall : public TracedKeeper, public ::testing::WithParamInterface<Scenario> {
 protected:
  void SetUp() override {
    TracedKeeper::SetUp();
    if (IsSkipped()) return;
    if (GetParam().needs_users) KV_SKIP_UNLESS_WE_CAN_PLAY_USERS();
  }

  Scene& scene() { return TracedKeeper::scene(GetParam().flags); }

  /// Run by the actor's process, which must not return into the test.
  static void act(const Scene& scene) {
    try {
      GetParam().act(scene);
    } catch (const std::exception& exception) {
      std::fprintf(stderr, "actor: %s\n", exception.what());
      _exit(1);
    }
  }

  /// Plays the scenario undisturbed. Returns its boundaries.
  std::vector<SystemCallTracer::Boundary> undisturbed() {
    Scene& scene = this->scene();
    GetParam().prepare(scene);
    SystemCallTracer tracer(scene.keeper());
    GetParam().begin(scene);
    Actor actor([&] { act(scene); });
    std::vector<SystemCallTracer::Boundary> boundaries;
    while (const auto boundary = tracer.next(actor.end())) boundaries.push_back(*boundary);
    const auto status = actor.wait();
    EXPECT_TRUE(status && ended_well(*status)) << "the undisturbed actor failed";
    EXPECT_EQ(tracer.end(), status_after(GetParam().ending));
    tracer.detach();
    if (GetParam().ending == Ending::ends) {
      EXPECT_THAT(ended(scene), ::testing::IsEmpty());
    }
    scene.end_guest();
    if (GetParam().costs_a_child) scene_.reset();
    return boundaries;
  }

  using Look = std::function<bool(SystemCallTracer&, const SystemCallTracer::Boundary&)>;

  /// Kills the keeper at the first boundary that is the moment: a successor goes on. Nothing = the
  /// scenario ended before, and well.
  std::optional<Complaints> kill_keeper_at(const Look& is_the_moment) {
    Scene& scene = this->scene();
    const Belongings before = settled(scene);
    Client client = std::move(*scene.connect(1));
    const RequestId running = *client.submit(long_request());
    const std::vector<pid_t> engines = {scene.engine(0), scene.engine(1), scene.steward()};
    GetParam().prepare(scene);
    SystemCallTracer tracer(scene.keeper());
    GetParam().begin(scene);
    Actor actor([&] { act(scene); });
    bool is_reached = false;
    while (const auto boundary = tracer.next(actor.end()))
      if ((is_reached = is_the_moment(tracer, *boundary))) break;
    const bool has_ended_traced = tracer.end().has_value();
    if (is_reached) tracer.kill();
    tracer.detach();
    Complaints complaints;
    const auto status = actor.wait();
    if (!status) complaints.push_back("the actor hangs");
    if (status && !ended_well(*status))
      complaints.push_back("the actor ended with status " + std::to_string(*status));
    if (GetParam().ending == Ending::ends) {
      append(complaints, ended(scene));
    } else {
      append(complaints, has_gone_on(scene, std::move(client), running, before));
      if (!GetParam().costs_a_child &&
          engines != std::vector<pid_t>{scene.engine(0), scene.engine(1), scene.steward()})
        complaints.push_back("an engine or the steward has been replaced");
    }
    if (GetParam().costs_a_child || !complaints.empty()) scene_.reset();
    const bool was_killed = is_reached && !has_ended_traced;
    if (!was_killed && complaints.empty()) return std::nullopt;
    return complaints;
  }

  enum class Harm : std::uint8_t { kill, stop };

  /// Kills or stops a peer while the keeper stands there. Nothing = there is no such peer then.
  std::optional<Complaints> harm_at(std::size_t boundary, Peer peer, Harm harm) {
    Scene& scene = this->scene();
    const Belongings before = settled(scene);
    Client client = std::move(*scene.connect(1));
    const RequestId running = *client.submit(long_request());
    GetParam().prepare(scene);
    SystemCallTracer tracer(scene.keeper());
    GetParam().begin(scene);
    Actor actor([&] { act(scene); });
    bool is_reached = true;
    for (std::size_t n = 0; n <= boundary && is_reached; ++n)
      is_reached = tracer.next(actor.end()).has_value();
    const pid_t victim = is_reached ? pid_of(peer, scene, actor) : 0;
    Complaints complaints;
    if (victim != 0) signal_process(victim, harm == Harm::kill ? SIGKILL : SIGSTOP);
    if (harm == Harm::kill)
      while (tracer.next(actor.end())) continue;
    const bool has_ended_traced = tracer.end().has_value();
    tracer.detach();
    if (victim != 0 && harm == Harm::stop) {
      if (GetParam().ending != Ending::ends) append(complaints, service(scene));
      signal_process(victim, SIGCONT);
    }
    const auto status = actor.wait();
    if (!status) complaints.push_back("the actor hangs");
    const bool may_fail = victim == actor.pid() || GetParam().actor_may_fail;
    if (status && !may_fail && !ended_well(*status))
      complaints.push_back("the actor ended with status " + std::to_string(*status));
    if (GetParam().ending == Ending::ends) {
      // The actor may have been killed before it told the keeper to end.
      if (victim == actor.pid() && !has_ended_traced) signal_process(scene.front(), SIGTERM);
      append(complaints, ended(scene));
    } else {
      append(complaints, has_gone_on(scene, std::move(client), running, before));
    }
    const bool is_child = peer == Peer::engine || peer == Peer::steward;
    if (GetParam().costs_a_child || (is_child && harm == Harm::kill) || !complaints.empty())
      scene_.reset();
    if (victim == 0) return std::nullopt;
    return complaints;
  }

  static pid_t pid_of(Peer peer, const Scene& scene, const Actor& actor) {
    switch (peer) {
      case Peer::actor: return is_alive(actor.pid()) ? actor.pid() : 0;
      case Peer::engine: return scene.engine(0);
      case Peer::guest: return scene.guest();
      case Peer::steward: return scene.steward();
    }
    return 0;
  }

  /// What the keeper has while nobody is connected but its engines and its steward. A client has
  /// been there: the process that pinned its requests waits for the next one's.
  static Belongings settled(const Scene& scene) {
    EXPECT_THAT(service(scene), ::testing::IsEmpty());
    constexpr std::size_t kProcesses = 5;  // the keeper, two engines, the steward, and that one
    Belongings before = scene.belongings();
    EXPECT_TRUE(eventually(
        [&] {
          if (has_client(scene)) return false;
          const Belongings last = std::exchange(before, scene.belongings());
          return last == before && before.processes == kProcesses;
        },
        kHang));
    return before;
  }
  /// Clients that have just left may still be known to the keeper. Each has a channel, of which the
  /// requests are closed last.
  static bool has_client(const Scene& scene) {
    return !memory_objects_of(scene.front(), "requests").empty();
  }

  /// The client's request was running all the time.
  static Complaints has_gone_on(Scene& scene, Client client, RequestId running,
                                const Belongings& before) {
    Complaints complaints;
    if (ids(read_to_the_end(client, running)) != Reference::of(scene).of_long)
      complaints.push_back("the stream that was running has other tokens");
    scene.end_guest();
    append(complaints, service(scene));
    { const Client gone = std::move(client); }
    append(complaints, is_as_before(scene, before));
    return complaints;
  }

  static Complaints is_as_before(const Scene& scene, const Belongings& before) {
    Complaints complaints;
    if (!eventually([&] { return scene.has_swept_all_slots(); }, kHang))
      complaints.push_back("a slot is not swept");
    if (!eventually([&] { return scene.fsck_is_clean(); }, kHang))
      complaints.push_back("fsck is not clean");
    Belongings now;
    const auto is_back = [&] { return (now = scene.belongings()) == before; };
    if (!eventually(is_back, kHang))
      complaints.push_back("before and after: descriptors " + std::to_string(before.descriptors) +
                           " " + std::to_string(now.descriptors) + ", objects " +
                           std::to_string(before.objects) + " " + std::to_string(now.objects) +
                           ", processes " + std::to_string(before.processes) + " " +
                           std::to_string(now.processes));
    if (!eventually([&] { return !has_zombie(scene.keeper()) && !has_zombie(scene.front()); },
                    kHang))
      complaints.push_back("a zombie is left");
    return complaints;
  }

  /// The daemon was told to end.
  static Complaints ended(Scene& scene) {
    const Scene::Remains remains;  // processes end with the daemon, which waits for them
    int status = -1;
    const auto is_collected = [&] { return waitpid(scene.front(), &status, WNOHANG) != 0; };
    if (!eventually(is_collected, kHang)) return {"the daemon does not end"};
    scene.forget_daemon();
    scene.end_guest();
    Complaints complaints = scene.nothing_is_left_of(remains);
    if (!ended_well(status))
      complaints.push_back("the daemon ended with status " + std::to_string(status));
    return complaints;
  }

  void harm_everywhere(Harm harm, std::size_t of_a_dose) {
    tally_.boundaries = undisturbed().size();
    if (HasFailure()) return;
    for (const Peer peer : GetParam().peers) {
      Tally of_peer{.boundaries = tally_.boundaries};
      for (const std::size_t boundary : chosen(tally_.boundaries, of_a_dose, random_)) {
        if (const auto complaints = harm_at(boundary, peer, harm))
          of_peer.add(boundary, *complaints);
        if (of_peer.violations != 0 && !must_kill_everywhere()) break;
      }
      of_peer.print(GetParam().name,
                    to_string(peer) + (harm == Harm::kill ? " killed" : " stopped"));
      ASSERT_EQ(of_peer.violations, 0u) << to_string(peer) << " " << of_peer.first;
    }
  }
};

TEST_P(EverySystemCall, MayBeTheKeepersLast) {
  tally_.boundaries = undisturbed().size();
  if (HasFailure()) return;
  for (const std::size_t boundary : chosen(tally_.boundaries, 4, random_)) {
    const Look is_there = [&, n = std::size_t{0}](auto&, auto&) mutable { return n++ == boundary; };
    if (const auto complaints = kill_keeper_at(is_there)) tally_.add(boundary, *complaints);
  }
  tally_.print(GetParam().name, "keeper killed");
  EXPECT_GT(tally_.boundaries, 10u);
  EXPECT_GT(tally_.harms, 0u);
  EXPECT_EQ(tally_.violations, 0u) << tally_.first;
}

bool is_message(const SystemCallTracer::Boundary& boundary) {
  return boundary.call == SYS_sendmsg || boundary.call == SYS_sendto;
}

/// What others have been told must have been written down before.
TEST_P(EverySystemCall, ThatSendsMayBeTheKeepersLast) {
  const auto boundaries = undisturbed();
  if (HasFailure()) return;
  tally_.boundaries = std::count_if(boundaries.begin(), boundaries.end(), is_message);
  for (const std::size_t message : chosen(tally_.boundaries, 2, random_)) {
    const Look has_sent = [&, n = std::size_t{0}](SystemCallTracer& tracer,
                                                  const auto& boundary) mutable {
      if (!is_message(boundary) || n++ != message) return false;
      tracer.finish(boundary);
      return true;
    };
    if (const auto complaints = kill_keeper_at(has_sent)) tally_.add(message, *complaints);
  }
  tally_.print(GetParam().name, "keeper killed after a message");
  EXPECT_EQ(tally_.violations, 0u) << tally_.first;
}

/// These two take minutes where the machine is busy, because much has to be waited for.
bool has_time() { return std::getenv("KVHIVE_BOUNDARIES") != nullptr || must_kill_everywhere(); }

TEST_P(EverySystemCall, MayBeTheMomentOfAnothersDeath) {
  if (!has_time()) GTEST_SKIP() << "NOT RUN: part of make keeper-kills";
  harm_everywhere(Harm::kill, 1);
}

TEST_P(EverySystemCall, MayBeTheMomentWhenAnotherIsStopped) {
  if (!has_time()) GTEST_SKIP() << "NOT RUN: part of make keeper-kills";
  harm_everywhere(Harm::stop, 1);
}

INSTANTIATE_TEST_SUITE_P(Keeper, EverySystemCall, ::testing::ValuesIn(scenarios()),
                         [](const auto& scenario) { return identifier(scenario.param.name); });

// -- the start ------------------------------------------------------------------------------------

class EverySystemCallOfTheStart : public TracedKeeper {
 protected:
  using Look = std::function<bool(SystemCallTracer&, const SystemCallTracer::Boundary&)>;

  /// Starts a daemon and calls `look` at each boundary until it returns false.
  /// Returns the keeper's status if it ended meanwhile.
  static std::optional<int> start_traced(Scene& scene, const Look& look) {
    int ends[2];
    KV_CHECK(pipe2(ends, O_CLOEXEC) == 0);
    const UniqueFd wait_end(ends[0]);
    UniqueFd go_end(ends[1]);
    scene.launch([&] {
      char letter;
      if (read(wait_end.get(), &letter, 1) != 1) _exit(126);
    });
    SystemCallTracer tracer(scene.front(), SystemCallTracer::FromItsExec{});
    KV_CHECK(write(go_end.get(), "g", 1) == 1);
    while (const auto boundary = tracer.next(scene.news()))
      if (!look(tracer, *boundary)) break;
    return tracer.end();
  }
  std::size_t count_boundaries() {
    Scene scene;
    std::size_t boundaries = 0;
    start_traced(scene, [&](auto&, auto&) { return ++boundaries != 0; });
    EXPECT_TRUE(scene.is_ready());
    return boundaries;
  }

  /// Kills the front, or once there is a keeper, that, at the first boundary that is the moment.
  /// Nothing = there was none.
  std::optional<Complaints> kill_at(const Look& is_the_moment) {
    Scene scene;
    std::optional<Scene::Remains> remains;
    bool is_keeper = false;
    start_traced(scene, [&](SystemCallTracer& tracer, const SystemCallTracer::Boundary& boundary) {
      if (!is_the_moment(tracer, boundary)) return true;
      remains = scene.remains();
      is_keeper = tracer.pid() != scene.front();
      tracer.kill();
      if (!is_keeper) scene.forget_daemon();
      return false;
    });
    if (!remains) return std::nullopt;
    Complaints complaints;
    if (!is_keeper) {
      complaints = scene.nothing_is_left_of(*remains, Scene::Left::perhaps_the_socket);
      scene.start();  // on the same path
    } else if (!scene.is_ready()) {
      return Complaints{"no other keeper makes it ready: " + scene.last_words()};
    }
    append(complaints, service(scene));
    // The directory stays with the one that did not make it.
    append(complaints,
           scene.stop(is_keeper ? Scene::Left::nothing : Scene::Left::perhaps_the_socket));
    return complaints;
  }

  std::optional<Complaints> kill_at(std::size_t boundary) {
    return kill_at(
        [boundary, n = std::size_t{0}](auto&, auto&) mutable { return n++ == boundary; });
  }

  std::optional<Complaints> kill_peer_at(std::size_t boundary, Peer peer) {
    Scene scene;
    pid_t victim = 0;
    std::size_t n = 0;
    start_traced(scene, [&](auto&, auto&) {
      if (n++ < boundary || victim != 0) return true;
      victim = peer == Peer::steward ? scene.steward() : scene.any_engine();
      if (victim != 0) signal_process(victim, SIGKILL);
      return victim != 0 || !must_kill_everywhere();  // a sample takes the next boundary
    });
    if (victim == 0) return std::nullopt;
    if (scene.is_ready()) {
      Complaints complaints = service(scene);
      append(complaints, scene.stop());
      return complaints;
    }
    // It may end, with an error.
    int status = -1;
    const auto is_collected = [&] { return waitpid(scene.front(), &status, WNOHANG) != 0; };
    if (!eventually(is_collected, kHang)) return Complaints{"neither ready nor ended"};
    scene.forget_daemon();
    Complaints complaints = scene.nothing_is_left_of({});
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 1)
      complaints.push_back("the keeper ended with status " + std::to_string(status));
    return complaints;
  }
};

TEST_F(EverySystemCallOfTheStart, MayBeTheKeepersLast) {
  tally_.boundaries = count_boundaries();
  for (const std::size_t boundary : chosen(tally_.boundaries, 6, random_))
    if (const auto complaints = kill_at(boundary)) tally_.add(boundary, *complaints);
  tally_.print("the start", "front or keeper killed");
  EXPECT_GT(tally_.harms, 0u);
  EXPECT_EQ(tally_.violations, 0u) << tally_.first;
}

/// The children that wait end then, and no other knows how. They must not be taken for engines that
/// cannot start.
TEST_F(EverySystemCallOfTheStart, MayLeaveEnginesThatWaitForTheirGo) {
  const auto waiting_children_of = [](pid_t keeper) {
    const std::vector<pid_t> children = children_of(keeper);
    return std::count_if(children.begin(), children.end(), [](pid_t child) {
      std::error_code it_has_ended;
      return std::filesystem::read_symlink("/proc/" + std::to_string(child) + "/exe", it_has_ended)
                 .filename() == "kvhived";
    });
  };
  std::size_t kills = 0;
  for (bool was_killed = true; was_killed; kills += was_killed ? 1 : 0) {
    const auto complaints = kill_at([&, n = std::size_t{0}](
                                        const SystemCallTracer& tracer,
                                        const SystemCallTracer::Boundary& boundary) mutable {
      return boundary.call == SYS_write && waiting_children_of(tracer.pid()) == 2 && n++ == kills;
    });
    was_killed = complaints.has_value();
    EXPECT_EQ(complaints.value_or(Complaints{}), Complaints{});
  }
  EXPECT_GT(kills, 0u);
}

TEST_F(EverySystemCallOfTheStart, MayBeTheMomentOfAnothersDeath) {
  const std::size_t boundaries = count_boundaries();
  for (const Peer peer : {Peer::engine, Peer::steward}) {
    Tally tally{.boundaries = boundaries};
    for (const std::size_t boundary : chosen(boundaries, 4, random_))
      if (const auto complaints = kill_peer_at(boundary, peer)) tally.add(boundary, *complaints);
    tally.print("the start", to_string(peer) + " killed");
    EXPECT_EQ(tally.violations, 0u) << to_string(peer) << " " << tally.first;
  }
}

TEST_F(EverySystemCallOfTheStart, MapsNothingThatOthersCouldSeeChange) {
  Scene scene;
  std::size_t boundaries = 0;
  std::vector<std::string> found;
  start_traced(scene, [&](auto&, auto&) {
    ++boundaries;
    if (found.empty()) found = shared_mappings_of(scene.keeper());
    return true;
  });
  ASSERT_TRUE(scene.is_ready());
  EXPECT_THAT(found, ::testing::IsEmpty());
  scene.add_guest();
  EXPECT_TRUE(scene.fsck_is_clean());
  EXPECT_THAT(shared_mappings_of(scene.keeper()), ::testing::IsEmpty());
  EXPECT_GT(boundaries, 100u);
}

}  // namespace
}  // namespace kvhive::testing
