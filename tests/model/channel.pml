/* One slot of a channel, its client, and the engines that serve it one after the other. An engine may
 * be killed before any step; then the keeper gives the channel to another. The client submits, sleeps
 * until its bell rings, reads, may ask for an abort, and submits again. The inlines are named as in
 * ipc/channel/engine_channel.cpp, ipc/channel/client_channel.cpp and actors/port.cpp.
 *
 * Must hold: the client never sleeps for ever (then Spin finds an invalid end state), gets every token
 * exactly once, and no engine works on a slot that it did not take. */
#define ENGINES 3
#define ROUNDS 2
#define TOKENS 2

/* The client's file: the newest request's number, and that of the newest one to be aborted. */
byte submitted, aborted;

/* The engines' file. The state is one word: a request's number, and whether it has ended. */
#define ACCEPTED(n) (2 * (n) + 1)
#define FINISHED(n) (2 * (n))
#define NUMBER (state / 2)
#define IS_ACCEPTED (state % 2 == 1)
byte state, tokens;

/* The client's bell: a socket with at most one unread ring that matters. The engine's: an eventfd that
 * is never read, and an edge that the engine which watches it has not handled yet. */
bool ring_is_asked, ring_is_queued, is_ringing;  /* the engine's ring of the client, in another thread */
bool client_bell, was_rung, is_watched, has_edge;

byte engine = 1;   /* the one that serves the channel */
bool is_dead;      /* it was killed, and the keeper has not given the channel to the next */
bool client_is_done;

inline ring_engine() {
  was_rung = true;
  if :: is_watched -> has_edge = true :: else fi
}

/* EventLoop::watch_edges: a bell that was rung before is an edge. */
inline watch_edges() {
  atomic {
    is_watched = true;
#ifndef MUTANT_WATCHING_AGAIN_IS_NO_EDGE
    has_edge = was_rung
#else
    skip
#endif
  }
}

inline read_slot() {
#ifdef MUTANT_TOKENS_ARE_READ_BEFORE_THE_STATE
  seen_tokens = tokens;
  seen = state;
#else
  seen = state;
  seen_tokens = tokens;
#endif
  d_step {
  is_finished = false;
  if
#ifdef MUTANT_THE_NUMBER_IS_NOT_COMPARED
  :: true ->
#else
  :: seen / 2 == round ->
#endif
     is_finished = (seen % 2 == 0);
     assert(seen_tokens >= tokens_read);
     tokens_read = seen_tokens
  :: else
  fi;
  seen = 0;
  seen_tokens = 0
  }
}

proctype Client() {
  byte round, tokens_read, seen_tokens, seen;
  bool is_finished, aborts;
  do
  :: round == ROUNDS -> break
  :: else ->
     round++;
     tokens_read = 0;
     aborts = false;
     submitted = round;
     atomic { ring_engine() }
     do
     :: !aborts -> aborts = true; aborted = round; atomic { ring_engine() }
     :: client_bell ->
#ifdef MUTANT_THE_BELL_IS_ANSWERED_AFTER_READING
        read_slot();
        client_bell = false;
#else
        client_bell = false;
        read_slot();
#endif
        if
        :: is_finished ->
           assert(aborts || tokens_read == TOKENS);
           break
        :: else
        fi
     od
  od;
  client_is_done = true
}

/* Before this step the engine may be killed. */
#define STEP if :: number < ENGINES -> goto killed :: true fi

/* BellRingers: a ring is queued, and one that waits already serves this call, too. (A client that is no
 * stranger is rung at once, which is one of the interleavings.) What a killed engine has queued is lost. */
inline ring_client() {
  if
  :: ring_is_asked -> skip
  :: else -> ring_is_asked = true; ring_is_queued = true
  fi
}

/* The thread that rings. One for all engines: they live one after the other. */
proctype Ringer() {
end:
  do
  :: atomic { ring_is_queued -> ring_is_queued = false; is_ringing = true }
#ifdef MUTANT_A_RING_IS_FORGOTTEN_AFTER_IT_WAS_RUNG
     client_bell = client_bell || is_ringing;
     ring_is_asked = false;
#else
     ring_is_asked = false;
     client_bell = client_bell || is_ringing;
#endif
     is_ringing = false
  od
}

inline finish() {
#ifdef MUTANT_THE_ENGINE_RINGS_BEFORE_THE_END_IS_STORED
  ring_client();
  STEP;
  state = FINISHED(NUMBER);
#else
  state = FINISHED(NUMBER);
  STEP;
  ring_client();
#endif
  has_request = false
}

inline take_submitted() {
  mark = submitted;
  if
  :: IS_ACCEPTED && takes_over ->
#ifndef MUTANT_ACCEPTED_REQUESTS_ARE_NOT_TAKEN_OVER
     assert(!has_request);
     STEP;
     has_request = true;
#ifdef MUTANT_THE_JOURNAL_IS_FORGOTTEN
     written = 0
#else
     written = tokens
#endif
#else
     skip
#endif
  :: !IS_ACCEPTED && mark != NUMBER ->
     assert(!has_request);
#ifdef MUTANT_THE_LOG_IS_EMPTIED_AFTER_ACCEPTING
     atomic { state = ACCEPTED(mark); mark = 0 }
     STEP;
     tokens = 0;
#else
#ifndef MUTANT_THE_LOG_IS_NOT_EMPTIED
     tokens = 0;
     STEP;
#endif
     atomic { state = ACCEPTED(mark); mark = 0 }
#endif
     STEP;
     has_request = true;
     written = 0
  :: else
  fi;
  mark = 0;
#ifndef MUTANT_EVERY_PASS_TAKES_OVER
  if
  :: takes_over ->
     takes_over = false;
#ifndef MUTANT_A_TAKEOVER_DOES_NOT_RING
     STEP;
     ring_client()
#endif
  :: else
  fi
#endif
}

inline take_aborts() {
  if
  :: has_request && aborted == NUMBER -> finish()
  :: else
  fi
}

inline drain() {
  take_submitted();
  take_aborts()
}

inline step() {
  if
  :: written < TOKENS ->
     written++;
#ifdef MUTANT_THE_END_IS_STORED_BEFORE_THE_LAST_TOKEN
     if :: written == TOKENS -> state = FINISHED(NUMBER) :: else fi;
     STEP;
     tokens = written;
     if :: written == TOKENS -> ring_client(); has_request = false :: else -> ring_client() fi
#else
     STEP;
     tokens = written;
     STEP;
     ring_client()
#endif
  :: else -> finish()
  fi
}

proctype Engine(byte number) {
  byte written, mark;
  bool has_request, takes_over = true;
  STEP;
  watch_edges();
  STEP;
  drain();
end:
  do
  :: is_watched && has_edge ->
     STEP;
     has_edge = false;
     if
     :: true -> drain()
     :: true -> is_watched = false  /* rings too often: not listened to for a while */
     fi
  :: !is_watched -> STEP; watch_edges()
  :: has_request -> STEP; step()
  :: client_is_done && !has_request -> goto done
  od;
killed:
  atomic {
    is_watched = false;
    has_edge = false;
    ring_is_asked = false;
    ring_is_queued = false;
    is_ringing = false;
    is_dead = true
  };
done:
  skip
}

/* Learns of a death from the pidfd, after it. */
proctype Keeper() {
end:
  do
  :: is_dead ->
     atomic {
       is_dead = false;
       engine++;
       run Engine(engine)
     }
  od
}

init {
  atomic {
    run Client();
    run Ringer();
    run Engine(1);
    run Keeper()
  }
}
