#include "tests/crash/keeper/scenarios.hpp"

#include <sys/socket.h>

#include <cstdio>

#include "ipc/protocol.hpp"
#include "ipc/text_memory.hpp"
#include "tests/support/playing_user.hpp"
#include "tests/tools/footprint.hpp"
#include "tests/tools/other_programs.hpp"
#include "tools/keeper/succession/front.hpp"

namespace kvhive::testing {
namespace {

/// Ends the actor with a word about what it saw.
[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "actor: %s\n", what.c_str());
  _exit(1);
}

void require(bool holds, const std::string& what) {
  if (!holds) fail(what);
}

/// Waits; fails if the daemon ends meanwhile.
void await(const Scene& scene, const std::function<bool()>& holds, const std::string& what) {
  bool does_hold = false;
  (void)eventually([&] { return (does_hold = holds()) || !is_alive(scene.front()); }, kHang);
  require(does_hold, what);
}

Client connected(const Scene& scene, std::uint32_t engine = kAnyEngine) {
  auto client = scene.connect(engine);
  if (!client) fail("connect: " + client.error().text);
  return std::move(*client);
}

/// Reads a request to its end; `at_first_token` is called once on the way.
std::vector<TokenId> stream(Client& client, const std::function<void()>& at_first_token) {
  const auto number = client.submit(long_request());
  require(number.has_value(), "submit");
  std::vector<TokenId> tokens;
  bool has_begun = false;
  for (Finish reason = Finish::none; reason == Finish::none;) {
    if (auto woken = client.wait(); !woken) fail("wait: " + woken.error().text);
    const Progress news = *client.read(*number);
    for (const TokenId token : ids(news)) tokens.push_back(token);
    if (!tokens.empty() && !std::exchange(has_begun, true)) at_first_token();
    reason = news.reason;
    require(reason == Finish::none || reason == Finish::length, news.error.text);
  }
  return tokens;
}

void require_same_tokens(Client& client, const std::function<void()>& disturbance) {
  const std::vector<TokenId> undisturbed = stream(client, [] {});
  require(stream(client, disturbance) == undisturbed, "other tokens than undisturbed");
}

// The commands of kvhive are not used: they see that the keeper is being stopped again and again,
// and say so.

UniqueFd connected_as_inspector(const Scene& scene) {
  auto socket = connect_to_daemon(scene.socket());
  if (!socket) fail("connect: " + socket.error().text);
  const auto welcome = say_hello(socket->get(), InspectorHello{layout_hash({}), 0});
  if (!welcome) fail("inspector: " + welcome.error().text);
  return std::move(*socket);
}

/// The next packet but a second welcome: a successor may send it again.
Expected<std::optional<Packet>> next_answer(const UniqueFd& socket) {
  while (true) {
    auto answer = receive_answer(socket.get());
    if (!answer || !*answer || !(*answer)->is(MessageType::inspector_welcome)) return answer;
  }
}

// -- the actors -----------------------------------------------------------------------------------

void come_and_go(const Scene& scene) {
  Client client = connected(scene);
  require(client.generate(short_request())->tokens.size() == 16, "tokens");
}

/// A stranger asks for the status (0), asks for a channel that is too small (1), and sends a
/// malformed packet (2).
void be_refused(const Scene& scene) {
  const PlayingUser playing(kAlice);
  for (const int what : {0, 1, 2}) {
    const auto socket = connect_to_daemon(scene.socket());
    require(socket.has_value(), "connect as a stranger");
    const bool is_sent = what == 0   ? send_packet(socket->get(), StatusRequest{}).has_value()
                         : what == 1 ? send_packet(socket->get(), ClientHello{1}).has_value()
                                     : send(socket->get(), "x", 1, MSG_NOSIGNAL) == 1;
    require(is_sent, "send as a stranger");
    const auto answer = receive_answer(socket->get());
    require(!answer || !*answer || (*answer)->is(MessageType::refused), "a stranger was welcome");
  }
}

void rename_the_log(const Scene& scene) {
  std::filesystem::rename(scene.log(), scene.log() + ".old");
  signal_process(scene.front(), SIGHUP);
  await(
      scene, [&] { return std::filesystem::exists(scene.log()); }, "there is no new log");
}

/// If the guest is what was killed, the actor fails at once.
void use_the_guest(const Scene& scene) {
  const auto has_joined = [&] { return has_memory_object(scene.guest(), "device"); };
  await(
      scene, [&] { return has_joined() || !is_alive(scene.guest()); }, "the guest does not join");
  require(has_joined(), "the guest is dead");
  // Of any engine, because a request for engine 2 alone would wait for it if it is killed.
  Client client = connected(scene);
  require(client.generate(short_request())->tokens.size() == 16, "tokens");
}

/// The engine with the fewest channels gets the client: that is the guest.
void lose_the_guest(const Scene& scene) {
  const Client first = connected(scene, 0), second = connected(scene, 1);
  Client client = connected(scene);
  require_same_tokens(client, [&] { signal_process(scene.guest(), SIGKILL); });
}

void lose_an_engine(const Scene& scene) {
  Client client = connected(scene, 0);
  pid_t engine = 0;  // it may just get another parent
  await(
      scene, [&] { return (engine = scene.engine(0)) != 0; }, "there is no engine 0");
  require_same_tokens(client, [&] { signal_process(engine, SIGKILL); });
  require(scene.engine(0) != engine, "the engine has not been replaced");
}

void lose_the_steward(const Scene& scene) {
  pid_t dead = 0;
  await(
      scene, [&] { return (dead = scene.steward()) != 0; }, "there is no steward");
  signal_process(dead, SIGKILL);
  const auto has_joined = [&] {
    const pid_t next = scene.steward();
    return next != 0 && next != dead && has_memory_object(next, "device");
  };
  await(scene, has_joined, "no steward follows");
}

void stop_while_streaming(const Scene& scene) {
  Client client = connected(scene);
  GenerateRequest request = long_request();
  request.max_tokens = 3000;
  require(client.submit(request).has_value() && client.wait().has_value(), "submit");
  signal_process(scene.front(), SIGTERM);
  while (client.wait().has_value()) continue;  // until the daemon hangs up
}

void ask_for_status(const Scene& scene) {
  const auto socket = connect_to_daemon(scene.socket());
  require(socket && send_packet(socket->get(), StatusRequest{}), "ask for the status");
  const auto answer = receive_answer(socket->get());
  require(answer && *answer && (*answer)->is(MessageType::status), "no status");
  const auto text = read_text_memory((*answer)->fds.at(0));
  require(text && Json::parse(*text)["engines"].size() == 2, "a broken status");
}

void ask_for_repair(const Scene& scene) {
  const UniqueFd socket = connected_as_inspector(scene);
  require(send_packet(socket.get(), RepairRequest{}).has_value(), "ask for a repair");
  const auto answer = next_answer(socket);
  require(answer && *answer && (*answer)->is(MessageType::repair_done), "no repair");
}

/// A successor must know that it is no repair.
void ask_for_reset(const Scene& scene) {
  const UniqueFd socket = connected_as_inspector(scene);
  require(send_packet(socket.get(), RepairRequest{0, Care::reset_cache}).has_value(), "reset");
  const auto answer = next_answer(socket);
  require(answer && *answer && (*answer)->is(MessageType::repair_done), "no reset");
  require(Json::parse((*answer)->tail()).contains("resets"), "something else was done");
}

/// Gives the order, and waits until it is done. The keeper, or its successor, says so.
void order(const Scene& scene, const Order& order, const std::string& details = {}) {
  const UniqueFd socket = connected_as_inspector(scene);
  require(send_packet(socket.get(), order, {}, details).has_value(), "order");
  const auto answer = next_answer(socket);
  if (answer && *answer && (*answer)->is(MessageType::refused))
    fail("refused: " + (*answer)->as<Refused>()->reason.str());
  require(answer && *answer && (*answer)->is(MessageType::done), "the order is not done");
}

void restart_an_engine(const Scene& scene) {
  Client client = connected(scene, 0);
  const pid_t before = scene.engine(0);
  require_same_tokens(client, [&] { order(scene, {1, Order::What::restart, 0, 0, 0}); });
  require(scene.engine(0) != before, "the engine has not been replaced");
}

void change_options(const Scene& scene) {
  order(scene, {1, Order::What::reload, 0, 0, 0}, R"({"max-queued-tokens": "123456"})");
  const auto socket = connect_to_daemon(scene.socket());
  require(socket && send_packet(socket->get(), StatusRequest{}), "ask for the status");
  const auto answer = receive_answer(socket->get());
  require(answer && *answer && (*answer)->is(MessageType::status), "no status");
  const std::string status = *read_text_memory((*answer)->fds.at(0));
  require(status.find("123456") != std::string::npos, "the options have not changed");
}

std::filesystem::path other_programs(const Scene& scene) {
  const auto directory = std::filesystem::path(scene.log()).parent_path() / "other";
  std::filesystem::create_directory(directory);
  copy_programs(directory);
  return directory;
}

void take_over(const Scene& scene) {
  const std::string program = other_programs(scene) / "kvhived";
  order(scene, {1, Order::What::take_over, 0, 0, kLedgerVersion},
        Json{{"program", program}}.dump());
  const std::string exe = "/proc/" + std::to_string(scene.front()) + "/exe";
  require(std::filesystem::read_symlink(exe) == program, "the front is of the earlier program");
}

void stop_as_inspector(const Scene& scene) {
  const UniqueFd socket = connected_as_inspector(scene);
  signal_process(scene.front(), SIGTERM);
  const auto answer = next_answer(socket);
  require(!answer || !*answer, "the keeper says something as it ends");
}

}  // namespace

std::string to_string(Peer peer) {
  switch (peer) {
    case Peer::actor: return "actor";
    case Peer::engine: return "engine";
    case Peer::guest: return "guest";
    case Peer::steward: return "steward";
  }
  return "?";
}

std::vector<Scenario> scenarios() {
  const auto add_guest = [](Scene& scene) { scene.add_guest(); };
  return {
      {.name = "a client comes and goes",
       .act = come_and_go,
       .peers = {Peer::actor, Peer::engine, Peer::steward}},
      {.name = "a stranger is refused",
       .flags = {"--socket-access", "everybody"},
       .act = be_refused,
       .peers = {Peer::actor},
       .needs_users = true},
      {.name = "an engine joins",
       .begin = [](Scene& scene) { scene.start_guest(); },
       .act = use_the_guest,
       .peers = {Peer::actor, Peer::guest, Peer::steward},
       .actor_may_fail = true},
      {.name = "an engine that joined dies",
       .prepare = add_guest,
       .act = lose_the_guest,
       .peers = {Peer::steward, Peer::actor, Peer::engine}},
      {.name = "an engine dies",
       .act = lose_an_engine,
       .peers = {Peer::actor, Peer::steward},
       .costs_a_child = true},
      {.name = "the steward dies",
       .act = lose_the_steward,
       .peers = {Peer::engine, Peer::steward},
       .costs_a_child = true,
       .kills_the_steward = true},
      {.name = "status is asked",
       .act = ask_for_status,
       .peers = {Peer::actor, Peer::engine, Peer::steward}},
      {.name = "repair is asked",
       .act = ask_for_repair,
       .peers = {Peer::actor, Peer::engine, Peer::steward},
       .actor_may_fail = true},
      {.name = "a reset of the cache is asked",
       .act = ask_for_reset,
       .peers = {Peer::actor, Peer::engine, Peer::steward},
       .actor_may_fail = true},
      {.name = "the log is renamed", .act = rename_the_log, .peers = {Peer::engine, Peer::steward}},
      {.name = "an engine is restarted",
       .act = restart_an_engine,
       .peers = {Peer::steward},
       .costs_a_child = true},
      {.name = "options are changed",
       .act = change_options,
       .peers = {Peer::actor, Peer::engine, Peer::steward}},
      {.name = "a program takes over",
       .act = take_over,
       .peers = {Peer::actor, Peer::engine, Peer::steward},
       .costs_a_child = true,
       .ending = Ending::hands_over},
      {.name = "it is stopped by a signal",
       .act = stop_while_streaming,
       .peers = {Peer::actor, Peer::engine, Peer::steward},
       .ending = Ending::ends},
      {.name = "it is stopped by a command",
       .act = stop_as_inspector,
       .peers = {Peer::actor, Peer::engine, Peer::steward},
       .ending = Ending::ends},
  };
}

}  // namespace kvhive::testing
