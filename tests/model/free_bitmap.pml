/* One block, its bit, the summary bit over it, and three processes that each take the block when
 * they find it, and give it back. Names are those of pool/free_blocks.cpp.
 *
 * Must hold when all processes have finished: if the block is free, its bit and the summary bit are
 * set. (Bits that a killed process did not set are set by the reaper and found by find_lost().) */
bool is_free = true, is_hinted = true, is_summed = true;

inline announce(seen) {
  is_hinted = true;
  seen = is_summed;
  if :: !seen -> is_summed = true :: else fi
}

proctype Process() {
  bool seen, got, looked;
  byte rounds;
  do
  :: rounds < 2 ->
     rounds++;
     got = false;
     seen = is_summed;
     if
     :: seen ->
        seen = is_hinted;
        if
        :: seen ->
           seen = is_free; /* check_bit */
           if
           :: !seen ->
              is_hinted = false;
#ifndef MUTANT_CLEAR_BIT_WITHOUT_LOOKING_AGAIN
              seen = is_free;
              looked = seen;
              if :: looked -> announce(seen); seen = true :: else fi
#endif
           :: else
           fi
        :: else ->
           is_summed = false; /* search_bitmap: no bit is left under this summary bit */
#ifndef MUTANT_CLEAR_SUMMARY_WITHOUT_LOOKING_AGAIN
           seen = is_hinted;
           if :: seen -> is_summed = true :: else fi;
#endif
           seen = false
        fi;
        if
        :: seen -> d_step { if :: is_free -> is_free = false; got = true :: else fi }
        :: else
        fi
     :: else
     fi;
     if
     :: got ->
        is_hinted = false; /* taken */
#ifdef MUTANT_ANNOUNCE_BEFORE_FREEING
        announce(seen);
        is_free = true
#else
        is_free = true; /* give_back */
        announce(seen)
#endif
     :: else
     fi
  :: else -> break
  od
}

active proctype AtRest() {
  timeout;
  assert(!is_free || (is_hinted && is_summed))
}

init { atomic { run Process(); run Process(); run Process() } }
