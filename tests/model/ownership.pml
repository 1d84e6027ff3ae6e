/* One slot of a channel that several engines have open at the same time, and its client. The slot's state
 * is one word: the request's number, its phase, and the engine that owns it. An engine takes a request by
 * a CAS on that word. It may take one that nobody has, one that waits at another engine, and any of an
 * engine that died. An engine may be killed before any step; then another is started. One engine may be
 * stopped for ever while it neither reads nor runs the request: then another must serve it.
 *
 * Must hold: the client gets every token exactly once and never sleeps for ever (then Spin finds an invalid
 * end state), and no two engines write to the slot. */
#define LIVES 3   /* engines in all, one after another in two places */
#define ROUNDS 2
#define TOKENS 1
#define NOBODY 0

mtype = { reading, taking, waiting, running, finished };

#ifndef MUTANT_THE_CLIENT_READS_TOKENS_WHILE_THE_REQUEST_IS_READ
#define HAS_TOKENS (seen_phase != reading)
#else
#define HAS_TOKENS true
#endif

/* The client's file. */
byte submitted, aborted, wanted;

/* The word, only looked at and changed in one atomic step. */
byte number;
mtype phase = finished;
byte owner = NOBODY;

/* What the owner alone writes. */
byte tokens;
byte body = 0;          /* the engine's copy of the request: its number, once it is complete */

bool is_live[LIVES + 1];  /* on the board, by the keeper: false only after the engine's end */
bool edge[LIVES + 1];     /* the client has rung, or an engine has died */
bool client_bell, client_is_done;
byte dead = NOBODY;       /* killed, and the keeper has not heard of it */
byte started, stopped;
byte writer = NOBODY;     /* who is writing to the slot, for the assertion */

inline ring_all() {
  d_step {
    i = 1;
    do :: i <= LIVES -> edge[i] = true; i++ :: else -> break od;
    i = 0
  }
}

inline begin_to_write() { assert(writer == NOBODY || writer == me || !is_live[writer]); writer = me }
inline end_to_write() { assert(writer == me); writer = NOBODY }

proctype Client() {
  byte round, tokens_read, i, seen_number;
  mtype seen_phase = finished;
  bool aborts;
  do
  :: round == ROUNDS -> break
  :: else ->
     round++;
     tokens_read = 0;
     aborts = false;
     if :: wanted = 1 :: wanted = 2 fi;
     submitted = round;
     ring_all();
     do
     :: !aborts && round == ROUNDS -> aborts = true; aborted = round; ring_all()
     :: client_bell ->
        client_bell = false;
        atomic { seen_number = number; seen_phase = phase };
        if
        :: seen_number == round && HAS_TOKENS ->
           assert(tokens >= tokens_read && tokens <= TOKENS);
           tokens_read = tokens;
           if
           :: seen_phase == finished ->
              assert(aborts || tokens_read == TOKENS);
              seen_number = 0;
              break
           :: else
           fi
        :: else
        fi;
        d_step { seen_number = 0; seen_phase = finished }
     od
  od;
  client_is_done = true
}

/* Before this step the engine may be killed. */
#define STEP \
  if \
  :: atomic { started < LIVES && dead == NOBODY -> dead = me; writer = (writer == me -> NOBODY : writer) }; goto done \
  :: true \
  fi

inline cas(n1, p1, o1, n2, p2) {
  atomic {
    tries = true;
    if
    :: number == n1 && phase == p1 && owner == o1 ->
       number = n2;
       phase = p2;
       owner = me;
       has_swapped = true
    :: else -> has_swapped = false
    fi
  }
}

inline ring_client() { client_bell = true }

inline finish() {
  STEP;
  atomic { end_to_write(); phase = finished };  /* the owner's store */
  STEP;
#ifndef MUTANT_AN_END_IS_NOT_RUNG
  ring_client();
#endif
  has = false
}

/* The word says that this engine reads a new request (reading), or takes one over (taking). */
inline take() {
  begin_to_write();
  if
  :: phase == reading ->
     tokens = 0;
     STEP;
     body = number
  :: else ->
     assert(body == number)
  fi;
  STEP;
  assert(owner == me);
  if
  :: aborted == number -> finish()
  :: else ->
     atomic { end_to_write(); phase = waiting };
     has = true;
     STEP;
     ring_client()  /* an owner that died may not have rung */
  fi
}

/* Values that are not needed any more must not make states differ. */
inline forget() {
  d_step {
    old_number = 0; old_owner = NOBODY; old_phase = finished; mark = 0;
    rescues = false; tries = false; has_swapped = false
  }
}

inline look() {
  atomic {
    old_number = number; old_phase = phase; old_owner = owner;
    mark = submitted
  };
  watches = false;
  has_swapped = false;
  if
  :: old_owner == me && old_phase != finished -> skip   /* this engine has it */
  :: old_phase == finished && mark != old_number ->
     if
     :: wanted == me || !is_live[wanted] || rescues -> STEP; cas(old_number, finished, old_owner, mark, reading)
     :: else -> watches = true
     fi
  :: old_phase == finished && mark == old_number && old_owner != NOBODY && !is_live[old_owner] ->
#ifndef MUTANT_AN_END_IS_NOT_RUNG_AGAIN_AFTER_A_DEATH
     STEP;
     cas(old_number, finished, old_owner, old_number, finished);
     if :: has_swapped -> STEP; ring_client(); has_swapped = false; tries = false :: else fi
#else
     skip
#endif
#ifdef MUTANT_A_STOPPED_ENGINE_IS_TAKEN_FOR_DEAD
  :: old_phase == running && old_owner != me && is_live[old_owner] ->
     STEP; cas(old_number, running, old_owner, old_number, taking)
#endif
  :: old_phase != finished && old_owner != me && !is_live[old_owner] ->
     STEP;
#ifdef MUTANT_A_HALF_COPIED_REQUEST_IS_TAKEN_OVER_AS_IT_IS
     cas(old_number, old_phase, old_owner, old_number, taking)
#else
     if
     :: old_phase == reading -> cas(old_number, reading, old_owner, old_number, reading)
     :: else -> cas(old_number, old_phase, old_owner, old_number, taking)
     fi
#endif
  :: old_phase == waiting && old_owner != me && is_live[old_owner] ->
     if
     :: rescues -> STEP; cas(old_number, waiting, old_owner, old_number, taking)
#ifndef MUTANT_A_REQUEST_THAT_WAITS_ELSEWHERE_IS_FORGOTTEN
     :: else -> watches = true
#else
     :: else
#endif
     fi
  :: (old_phase == reading || old_phase == taking) && old_owner != me && is_live[old_owner] ->
#ifndef MUTANT_A_REQUEST_THAT_ANOTHER_READS_IS_FORGOTTEN
     watches = true
#else
     skip
#endif
  :: else -> skip
  fi;
  if
  :: has_swapped -> STEP; take()
  :: !has_swapped && tries -> edge[me] = true  /* it has changed meanwhile */
  :: else
  fi;
  forget()
}

/* Another engine has the request now; it may be stopped before it runs it. */
inline lose() {
  has = false;
#ifndef MUTANT_A_LOST_REQUEST_IS_FORGOTTEN
  edge[me] = true
#endif
}

/* The scheduler admits a request that waits. */
inline start() {
  STEP;
#ifdef MUTANT_A_REQUEST_STARTS_WITHOUT_A_CAS
  atomic { phase = running; owner = me; has_swapped = true };
#else
  cas(number, waiting, me, number, running);
#endif
  if
  :: has_swapped -> begin_to_write(); runs = true
  :: else -> lose()
  fi;
  forget()
}

inline generate() {
  if
  :: tokens < TOKENS && aborted != number ->
     STEP;
     assert(owner == me);
     tokens++;
     STEP;
     ring_client()
  :: else -> assert(owner == me); runs = false; finish()
  fi
}

/* An abort of a request that waits here. */
inline end_waiting() {
  STEP;
  cas(number, waiting, me, number, taking);
  if
  :: has_swapped -> begin_to_write(); finish()
  :: else -> lose()
  fi;
  forget()
}

proctype Engine(byte me) {
  byte old_number, old_owner, mark;
  mtype old_phase = finished;
  bool has, runs, watches, rescues, tries, has_swapped;
end:
  do
  :: edge[me] -> edge[me] = false; if :: !runs -> look() :: else fi
  :: watches && !has && !runs -> rescues = true; look()      /* a timer, while it has nothing to do */
  :: has && !runs -> if :: aborted == number -> end_waiting() :: else -> start() fi
  :: runs -> generate()
  :: atomic { !runs && stopped == NOBODY -> stopped = me }; goto is_stopped
  :: client_is_done -> goto done
  od;
is_stopped:
end_stopped:
  false;
done:
  skip
}

/* Learns of a death from the pidfd, after it. */
proctype Keeper() {
  byte i;
end:
  do
  :: dead != NOBODY ->
     atomic {
       is_live[dead] = false;
       dead = NOBODY;
       started++;
       is_live[started] = true;
       run Engine(started)
     };
     ring_all()
  od
}

init {
  atomic {
    started = 2;
    is_live[1] = true;
    is_live[2] = true;
    run Client();
    run Engine(1);
    run Engine(2);
    run Keeper()
  }
}
