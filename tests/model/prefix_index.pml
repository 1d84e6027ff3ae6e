/* Three names with the same two candidate buckets, two processes that publish a block under one of
 * them, evict it again, and may be killed between operations, and a cleaner that clears the first
 * bucket's mark (pool/care/index_marks.cpp). The first bucket has room for one hint, the second for
 * two. The inlines are named as in pool/prefix_index.cpp.
 *
 * Must hold when all processes have finished: a published block can be found, and a block that is
 * not published has no hint (both unless a process was killed while it worked on the block). The
 * second bucket is then not in use without the mark that leads there. */
#define BLOCKS 3
#define FREE 0
#define TAKEN 1
#define READY 2

byte home, second[2];
bool has_spilled;
byte state[BLOCKS + 1];
bool is_orphaned[BLOCKS + 1];

/* One way of a bucket. If it is empty, one instruction takes it. */
inline place(way, block) {
  if :: !is_done -> found = way :: else fi;
  if
  :: !is_done && found == 0 -> atomic { if :: way == 0 -> way = block; is_done = true :: else fi }
  :: else
  fi
}

inline mark_spilled() {
#ifdef MUTANT_TAKE_THE_MARK_FOR_GRANTED
  skip
#else
  if :: !has_spilled -> has_spilled = true :: else fi
#endif
}

inline insert(block) {
  is_done = false;
  place(home, block);
  if
  :: !is_done ->
#ifndef MUTANT_MARK_AFTER_THE_HINT
     mark_spilled();
#endif
     place(second[0], block);
     place(second[1], block);
#ifdef MUTANT_MARK_AFTER_THE_HINT
     if :: true -> goto killed :: true fi;
#endif
#ifndef MUTANT_THE_INSERT_DOES_NOT_LOOK_AGAIN
     mark_spilled()
#else
     skip
#endif
  :: else
  fi
}

inline remove(way, block) {
  if
  :: !is_done && way == block -> way = 0; is_done = true
  :: else
  fi
}

inline erase(block) {
  is_done = false;
  remove(home, block);
#ifdef MUTANT_AN_EMPTY_BUCKET_LOSES_ITS_MARK
  if :: is_done -> has_spilled = false :: else fi;
#endif
#ifndef MUTANT_ERASE_LOOKS_INTO_ONE_BUCKET
  if
  :: !is_done -> remove(second[0], block); remove(second[1], block)
  :: else
  fi
#endif
}

proctype Process() {
  byte block, found, rounds;
  bool is_done;
  do
  :: rounds < 3 ->
     rounds++;
     if
     :: atomic { state[1] != TAKEN -> block = 1 }
     :: atomic { state[2] != TAKEN -> block = 2 }
     :: atomic { state[3] != TAKEN -> block = 3 }
     :: else -> break
     fi;
     if
     :: atomic { state[block] == FREE -> state[block] = TAKEN }
        if :: goto killed :: skip fi;
        /* In the code the block is ready, but held, before it has a hint: it is not evicted yet. */
        insert(block);
        if :: goto killed :: skip fi;
        state[block] = READY
     :: atomic { state[block] == READY -> state[block] = TAKEN }
        if :: goto killed :: skip fi;
        erase(block);
        if :: goto killed :: skip fi;
        state[block] = FREE
     :: else
     fi
  :: else -> break
  od;
  goto done;
killed:
  is_orphaned[block] = true;
done:
  skip
}

/* Hints of blocks that are ready stand in the second bucket. */
inline look_for_hints(is_needed) {
  is_needed = (second[0] != 0);
  if :: !is_needed -> is_needed = (second[1] != 0) :: else fi
}

proctype Cleaner() {
  bool is_needed;
  look_for_hints(is_needed);
  if
  :: !is_needed ->
     has_spilled = false;
#ifndef MUTANT_THE_CLEANER_DOES_NOT_LOOK_AGAIN
     look_for_hints(is_needed);
     if :: is_needed -> has_spilled = true :: else fi
#endif
  :: else
  fi
}

active proctype AtRest() {
  byte i;
  timeout;
  assert(has_spilled || (second[0] == 0 && second[1] == 0));
  for (i : 1 .. BLOCKS) {
    if
    :: state[i] == READY ->
       assert(home == i || (has_spilled && (second[0] == i || second[1] == i)))
    :: state[i] == FREE -> assert(home != i && second[0] != i && second[1] != i)
    :: else
    fi
  }
}

init { atomic { run Process(); run Process(); run Cleaner() } }
