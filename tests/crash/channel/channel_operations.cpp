#include "tests/crash/channel/channel_operations.hpp"

#include "base/check.hpp"

namespace kvhive::testing {
namespace {

using Stage = ChannelStage;

bool has_finished(Stage& stage, std::uint32_t slot) {
  return stage.client().answer(slot).state.load().phase() == Phase::finished;
}

// -- what comes before ----------------------------------------------------------------------------

void nothing(Stage&) {}

/// The engine has generated everything of the request in slot 0, and the client has read it.
void all_tokens(Stage& stage) {
  stage.engine().generate_all(0);
  stage.engine().ring();
  stage.client().wake();
}

/// The request in slot 0 has ended, and the bell has rung.
void an_end(Stage& stage) {
  stage.engine().generate_all(0);
  stage.engine().finish(0);
  stage.engine().ring();
}

/// Slot 0 and its heap are free again.
void a_vacated_slot(Stage& stage) {
  an_end(stage);
  stage.client().wake();
}

void a_taken(Stage& stage, std::uint32_t number) {
  stage.client().submit(number);
  stage.engine().hear();
}

/// The client has asked for the end of request 104, in slot 2.
void a_wanted_abort(Stage& stage) {
  a_taken(stage, 104);
  stage.client().abort(2);
}

void two_submitted(Stage& stage) {
  stage.client().submit(4);
  stage.client().submit(5);
}

/// The engine died. In slots 2 and 3, request 6 has ended without a ring, and 4 was not taken.
void a_dead_engine(Stage& stage) {
  a_taken(stage, 6);
  stage.engine().generate_all(2);
  stage.engine().finish(2);
  stage.client().submit(4);
  stage.replace_engine();
}

/// The next engine died, too, when it had taken over slot 0 alone, and written a token.
void a_second_dead_engine(Stage& stage) {
  a_dead_engine(stage);
  stage.engine().most_bytes = 1;
  stage.engine().receive();
  stage.engine().adopt();
  stage.engine().generate(0);
  stage.replace_engine();
}

/// Request 2 ran when each of these engines died, and must not be tried again.
void many_dead_engines(Stage& stage) {
  for (std::uint32_t died = 0; died <= kMostTakeovers; ++died) {
    auto& state = answer_in(stage.medium().answers.data(), 0).state;
    state = state.load().in(Phase::running);
    stage.replace_engine();
    if (died < kMostTakeovers) stage.engine().receive();
  }
  stage.client().allow_refusal(0);
}

void a_request(Stage& stage, std::uint32_t number) {
  stage.number = number;
  stage.request = request_of(number);
}

// -- operations -----------------------------------------------------------------------------------

bool receive(Stage& stage, std::size_t requests) {
  while (stage.engine().receive()) continue;
  return stage.engine().received() == requests;
}

bool receive_in_pieces(Stage& stage, std::size_t requests) {
  stage.engine().most_bytes = 1;
  return receive(stage, requests);
}

bool submit(Stage& stage, std::uint32_t slot) {
  return stage.client().submit(stage.number, stage.request) == slot;
}

bool wake(Stage& stage) {
  stage.client().wake();
  return true;
}

/// An engine counts that it takes a request over before it touches the request: the request may
/// kill it.
bool takeovers_are_counted(Stage& stage) {
  for (std::uint32_t slot = 0; slot < 2; ++slot) {
    const AnswerSlot& answer = stage.client().answer(slot);
    const bool is_taken_over = answer.engine.load() == stage.serving_engine();
    if (is_taken_over && answer.takeovers.load() + answer.takeovers_waiting.load() == 0)
      return false;
  }
  return true;
}

const std::vector<ChannelOperation>& list() {
  constexpr auto engine = Side::engine;
  constexpr auto client = Side::client;
  static const std::vector<ChannelOperation> operations{
      {"engine: open, close", engine, nothing,
       [](Stage& s) {
         return EngineChannel::open(2, TestBoard().join(7), copy_of(s.medium().memory.requests),
                                    s.medium().memory.answers, Stage::kBytes,
                                    direct_ring(copy_of(s.medium().client_bell.engine_end)))
             .has_value();
       }},
      {"take: a prompt of tokens, a prompt of text", engine, two_submitted,
       [](Stage& s) { return receive(s, 2); }},
      {"take: a slot that is used again", engine,
       [](Stage& s) {
         a_vacated_slot(s);
         s.client().submit(4);
       },
       [](Stage& s) { return receive(s, 1); }},
      {"take: a prompt that is too long, a malformed request", engine,
       [](Stage& s) {
         for (const std::uint32_t number : {5u, 4u})
           s.client().allow_refusal(s.client().submit(number));
         s.client().body(3).max_tokens = 0;
         s.engine().limits.text_bytes = 3;
       },
       [](Stage& s) { return receive(s, 0) && has_finished(s, 2) && has_finished(s, 3); }},
      {"take: a prompt that is too long, in a slot that is used again", engine,
       [](Stage& s) {
         a_vacated_slot(s);
         s.client().allow_refusal(s.client().submit(5));
         s.engine().limits.text_bytes = 3;
       },
       [](Stage& s) { return receive(s, 0) && has_finished(s, 0); }},
      {"refuse", engine,
       [](Stage& s) {
         a_taken(s, 4);
         s.client().allow_refusal(2);
       },
       [](Stage& s) { return s.engine().refuse(2), has_finished(s, 2); }},
      {"a question is answered", engine, [](Stage& s) { a_taken(s, kQuestion); },
       [](Stage& s) { return s.engine().answer(2), has_finished(s, 2); }},
      {"takeover: of a question, and its answer", engine,
       [](Stage& s) {
         a_taken(s, kQuestion);
         KV_CHECK(s.engine().request(2).sink->read());
         s.replace_engine();
       },
       [](Stage& s) {
         const bool took = receive(s, 3);
         s.engine().adopt();
         if (s.engine().has(2)) s.engine().answer(2);
         return took;
       },
       true, takeovers_are_counted},
      {"admission, the first token", engine, nothing,
       [](Stage& s) { return s.engine().generate(1), s.engine().ring(), true; }},
      {"a token, a preemption", engine, nothing,
       [](Stage& s) {
         s.engine().generate(0);
         s.engine().request(0).sink->flush();
         s.engine().preempt(0);
         return true;
       }},
      {"finish", engine, all_tokens,
       [](Stage& s) { return s.engine().finish(0), s.engine().ring(), true; }},
      {"tokens and ends of two requests, one ring", engine, nothing,
       [](Stage& s) {
         for (const std::uint32_t slot : {0u, 1u})
           if (s.engine().has(slot)) s.engine().generate_all(slot);
         for (const std::uint32_t slot : {0u, 1u})
           if (s.engine().has(slot)) s.engine().finish(slot);
         return s.engine().ring(), true;
       }},
      {"an abort is seen", engine, a_wanted_abort,
       [](Stage& s) { return s.engine().see_aborts(), !s.engine().has(2); }},
      {"an abort is seen: the prompt is being tokenised", engine,
       [](Stage& s) {
         a_wanted_abort(s);
         KV_CHECK(s.engine().request(2).sink->read());
       },
       [](Stage& s) { return s.engine().see_aborts(), !s.engine().has(2); }},
      {"takeover: of a takeover, in pieces", engine, a_second_dead_engine,
       [](Stage& s) { return receive_in_pieces(s, 3); }, true, takeovers_are_counted},
      {"takeover: of an abort", engine,
       [](Stage& s) {
         a_wanted_abort(s);
         s.replace_engine();
       },
       [](Stage& s) {
         const bool took = receive(s, 3);
         s.engine().adopt();
         return s.engine().see_aborts(), took && !s.engine().has(2);
       },
       true, takeovers_are_counted},
      {"takeover: a request that was taken over too often", engine, many_dead_engines,
       [](Stage& s) { return receive(s, 1) && has_finished(s, 0); }},
      {"takeover, tokens, an end", engine, a_dead_engine,
       [](Stage& s) {
         const bool took = receive(s, 3);
         s.engine().adopt();
         if (s.engine().has(0)) s.engine().generate_all(0);
         if (s.engine().has(0)) s.engine().finish(0);
         return s.engine().ring(), took;
       }},
      {"help: a request that waits elsewhere", engine, nothing,
       [](Stage& s) {
         s.helper().take_all_that_waits();
         return s.helper().has(1);
       }},
      {"help: a request that nobody has taken, to its end", engine,
       [](Stage& s) { s.client().submit(4); },
       [](Stage& s) {
         s.helper().take_all_that_waits();
         const bool took = s.helper().has(2);
         s.helper().end_all();
         return took;
       }},
      {"a request that another has taken", engine,
       [](Stage& s) { s.helper().take_all_that_waits(); },
       [](Stage& s) { return s.engine().generate(1), !s.engine().has(1); }},

      {"client: open, close", client, nothing,
       [](Stage& s) {
         return ClientChannel::open(copy_of(s.unopened().requests), s.unopened().answers,
                                    Stage::kBytes, copy_of(s.medium().engine_bell))
             .has_value();
       }},
      {"submit: a prompt of tokens", client, [](Stage& s) { a_request(s, 4); },
       [](Stage& s) { return submit(s, 2); }},
      {"submit: a prompt of text, a seed drawn at random", client,
       [](Stage& s) { a_request(s, 9); }, [](Stage& s) { return submit(s, 2); }, false},
      {"submit: slot and heap used again", client,
       [](Stage& s) {
         a_vacated_slot(s);
         a_request(s, 4);
       },
       [](Stage& s) { return submit(s, 0); }},
      {"submit: no room", client,
       [](Stage& s) {
         a_request(s, 4);
         s.request.most_text_bytes = Stage::kBytes;
       },
       [](Stage& s) { return !s.client().channel().submit(s.request).has_value(); }},
      {"read: a token", client,
       [](Stage& s) {
         s.engine().generate(0);
         s.engine().ring();
       },
       wake},
      {"read: an end", client, an_end, [](Stage& s) { return wake(s) && !s.client().has(0); }},
      {"read: an end, and submit in its place", client,
       [](Stage& s) {
         an_end(s);
         a_request(s, 4);
       },
       [](Stage& s) { return wake(s) && submit(s, 0); }},
      {"abort", client, [](Stage& s) { a_taken(s, 104); },
       [](Stage& s) { return s.client().abort(2), true; }},
      {"abort, and submit another request", client, [](Stage& s) { a_request(s, 4); },
       [](Stage& s) { return s.client().abort(0), submit(s, 2); }},
      {"submit, abort", client, [](Stage& s) { a_request(s, 104); },
       [](Stage& s) {
         const bool is_there = submit(s, 2);
         return s.client().abort(2), is_there;
       }},
  };
  return operations;
}

}  // namespace

const std::vector<ChannelOperation>& channel_operations() { return list(); }

const std::vector<PeersDeed>& deeds_of(Side peer) {
  static const std::vector<PeersDeed> clients{
      {"the client sleeps until rung", [](Stage& s) { s.client().wake(); }},
      {"the client reads", [](Stage& s) { s.client().read_all(); }},
      {"the client submits", [](Stage& s) { s.client().submit(10); }},
      {"the client aborts", [](Stage& s) { s.client().abort(0); }},
      {"the client reads, and submits",
       [](Stage& s) {
         s.client().read_all();
         s.client().submit(10);
       }},
      {"another engine takes what waits, and is stopped",
       [](Stage& s) { s.helper().take_all_that_waits(); }},
      {"another engine takes what waits, and ends it",
       [](Stage& s) {
         s.helper().take_all_that_waits();
         s.helper().end_all();
       }},
  };
  static const std::vector<PeersDeed> engines{
      {"the engine hears", [](Stage& s) { s.engine().hear(); }},
      {"the engine generates a token",
       [](Stage& s) {
         if (const auto slot = s.engine().first_request();
             slot && s.engine().request(*slot).tokens < kStoryTokens)
           s.engine().generate(*slot);
         s.engine().ring();
       }},
      {"the engine hears, and ends all it has",
       [](Stage& s) {
         s.engine().hear();
         s.engine().end_all();
       }},
      {"another engine takes over",
       [](Stage& s) {
         s.replace_engine();
         s.engine().hear();
       }},
      {"another engine takes what waits, and ends it",
       [](Stage& s) {
         s.helper().take_all_that_waits();
         s.helper().end_all();
       }},
  };
  return peer == Side::client ? clients : engines;
}

}  // namespace kvhive::testing
