/* One block, two process slots. A process may be killed before any step; a dead slot is swept by a
 * reaper that may itself be killed and started again, and is then given to a new process.
 *
 * One statement or d_step is one atomic access to shared memory. A compare-and-swap that finds
 * another value does nothing. take, publish, give_back, pin and unpin change the word as taken_by,
 * published_by, freed, pinned_by and unpinned_by do in pool/block_word.hpp; sweep does what
 * pool/care/reaper.cpp does. */
#define FREE 0
#define FILLING 1
#define READY 2
#define GENERATIONS 2
#define LIVES 2 /* processes per slot */

byte state = FREE, generation, holders; /* ONE word */
byte key, content;                      /* descriptor and tokens; the KV itself */
bool hint;

bool is_running[2], is_dead[2];
byte lives[2];
byte kills;
byte writers; /* only for the proof: processes that may write the content */

#define MY_BIT (1 << slot)

/* Takes the block: from the free structures, or by evicting it while it is idle. */
inline take() {
  if
  :: d_step { state == FREE && generation < GENERATIONS ->
       state = FILLING; generation++; holders = MY_BIT; writers++; assert(writers == 1) }
#ifdef MUTANT_EVICT_HELD_BLOCKS
  :: d_step { state == READY && generation < GENERATIONS ->
#else
  :: d_step { state == READY && holders == 0 && generation < GENERATIONS ->
#endif
       state = FILLING; generation++; holders = MY_BIT; writers++; assert(writers == 1) }
     hint = false
  fi
}

inline publish() {
  if :: wanted = 1 :: wanted = 2 fi;
#ifdef MUTANT_PUBLISH_BEFORE_WRITING
  d_step { state = READY; writers-- };
  content = 0; key = wanted; content = wanted;
#else
  content = 0; key = wanted; content = wanted;
  d_step { assert(state == FILLING && holders == MY_BIT); state = READY; writers-- };
#endif
  hint = true
}

inline give_back() {
  d_step { assert(state == FILLING && holders == MY_BIT); state = FREE; holders = 0; writers-- }
}

inline unpin() { d_step { assert(holders & MY_BIT); holders = holders & ~MY_BIT } }

proctype Process(byte slot) {
  byte seen, wanted;
  {
    do
    :: take();
       if
       :: publish(); assert(content == wanted); unpin()
       :: give_back()
       fi;
       d_step { wanted = 0; seen = 0 }
    :: d_step { hint && state == READY -> seen = generation }; /* match reads the word, */
       wanted = key;                                           /* then the key it compares, */
       if                                                      /* then pins */
#ifdef MUTANT_PIN_ANY_GENERATION
       :: d_step { state == READY -> holders = holders | MY_BIT }
#else
       :: d_step { state == READY && generation == seen -> holders = holders | MY_BIT }
#endif
          assert(content == wanted);
          unpin()
       :: else
       fi;
       d_step { wanted = 0; seen = 0 }
    :: break
    od
  } unless { is_dead[slot] };
  is_running[slot] = false
}

active proctype Killer() {
  do
  :: d_step { kills < 2 && is_running[0] && !is_dead[0] -> is_dead[0] = true; kills++ }
  :: d_step { kills < 2 && is_running[1] && !is_dead[1] -> is_dead[1] = true; kills++ }
  :: break
  od
}

inline start(number) {
  d_step { is_dead[number] = false; lives[number]++;
           is_running[number] = (lives[number] < LIVES) };
  if :: is_running[number] -> run Process(number) :: else fi
}

/* slot is the dead process's */
inline sweep() {
  d_step { old_state = state; old_generation = generation; old_holders = holders };
  if
  :: d_step { old_state == FILLING && old_holders == MY_BIT ->
       if
       :: state == FILLING && generation == old_generation && holders == MY_BIT ->
            state = FREE; holders = 0; writers--
       :: else
       fi }
  :: d_step { !(old_state == FILLING && old_holders == MY_BIT) && (old_holders & MY_BIT) ->
       holders = holders & ~MY_BIT }
  :: else
  fi;
  d_step { old_state = 0; old_generation = 0; old_holders = 0 }
}

active proctype Reaper() {
  byte old_state, old_generation, old_holders, slot;
  do
#ifdef MUTANT_REAP_ON_SUSPICION
  :: d_step { is_running[0] && !is_dead[0] && (holders & 1) -> slot = 0 }; sweep()
#endif
#ifdef MUTANT_REUSE_BEFORE_SWEEP
  :: d_step { is_dead[0] && !is_running[0] -> slot = 0 }; start(slot); sweep()
#endif
  :: d_step { is_dead[0] && !is_running[0] -> slot = 0 };
     sweep();
     if :: start(slot) :: skip /* killed before it told the keeper: its successor sweeps again */ fi
  :: d_step { is_dead[1] && !is_running[1] -> slot = 1 };
     sweep();
     if :: start(slot) :: skip fi
  :: timeout -> break
  od;
  assert(!is_running[0] && !is_running[1]);
  assert(holders == 0 && writers == 0);
  assert(state == FREE || state == READY);
  assert(state != READY || content == key)
}

init {
  atomic { is_running[0] = true; is_running[1] = true; run Process(0); run Process(1) }
}
