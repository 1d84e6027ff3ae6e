/* One block that several processes release, hold for a moment, spare (a second chance) and evict at
 * the same time, and the ring of hints. Names are those of pool/idle_order.cpp. The ring is long enough that no hint is
 * overwritten: overwritten hints are found by the scan, as after a crash.
 *
 * Must hold when all processes have finished: an idle block has a current hint at or after the
 * head, or the epoch has moved on, so that every process scans before its next eviction. */
#define RING 12
#define NOBODY 0
#define RELEASER 1
#define HOLDER 2
#define EVICTOR 4
#define RELEASER_TOO 8

byte holders = RELEASER; /* the block is ready, and these processes hold it */
bool is_gone;            /* evicted */
bool is_hit;             /* it will be spared once; a bit of the word, as holders are */
bool gives_chances;      /* the pool's policy */
byte stamp;
bool ring[RING];         /* true = the hint names the block */
byte head, tail = 1;     /* position 0 is never read */
bool epoch_moved;

inline draw(mine) { d_step { mine = tail; tail++; assert(tail < RING) } }

inline write_hint(mine) {
  draw(mine);
  stamp = mine;
  ring[mine] = true
}

inline settle(mine, is_idle) {
#ifdef MUTANT_RELEASE_WITHOUT_SETTLING
  skip
#else
  do
  :: mine = stamp;
     if :: head <= mine -> break :: else fi;
     is_idle = (holders == NOBODY && !is_gone);
     if :: !is_idle || stamp != mine -> break :: else fi;
     write_hint(mine)
  od
#endif
}

proctype Releaser(byte my_bit) {
  byte mine;
  bool is_idle;
  write_hint(mine);
  d_step { holders = holders & ~my_bit };
  settle(mine, is_idle)
}

/* A match that is cancelled because the request did not fit: the block keeps its place. */
proctype Holder() {
  byte mine;
  if
  :: d_step { !is_gone -> holders = holders | HOLDER; is_hit = gives_chances };
     d_step { holders = holders & ~HOLDER };
#ifndef MUTANT_CANCEL_WITHOUT_RESTORING
     mine = stamp;
     if
     :: head > mine ->
        if :: holders == NOBODY && !is_gone && stamp == mine -> epoch_moved = true :: else fi
     :: else
     fi
#endif
  :: skip
  fi
}

/* Walks the hints and takes the block, unless another process has taken or pinned it. Then moves
 * the head past the hints it walked, and reads these hints once more. */
proctype Evictor() {
  byte cursor = head, end, from, position, mine;
  bool is_current;
  end = tail;
  do
  :: cursor < end ->
     is_current = ring[cursor];
     if :: is_current -> is_current = (holders == NOBODY && !is_gone) :: else fi;
     if :: is_current -> is_current = (stamp == cursor) :: else fi;
     if
     :: is_current && is_hit ->
        d_step { is_current = (holders == NOBODY && !is_gone && is_hit);
                 if :: is_current -> is_hit = false :: else fi };
        if
        :: is_current ->
           write_hint(mine);
#ifndef MUTANT_SPARE_WITHOUT_SETTLING
           settle(mine, is_current)
#endif
        :: else
        fi
     :: is_current && !is_hit ->
        d_step { if :: holders == NOBODY && !is_gone && !is_hit -> is_gone = true :: else fi }
     :: else
     fi;
     cursor++
  :: else -> break
  od;
  atomic { from = head; if :: head < cursor -> head = cursor :: else fi };
#ifndef MUTANT_COMMIT_WITHOUT_LOOKING_AGAIN
  position = from;
  do
  :: position < cursor ->
     is_current = ring[position];
     if :: is_current -> is_current = (holders == NOBODY && !is_gone) :: else fi;
     if :: is_current -> is_current = (stamp == position) :: else fi;
     if
     :: is_current ->
        write_hint(mine);
#ifndef MUTANT_LOOKING_AGAIN_WITHOUT_SETTLING
        settle(mine, is_current)
#endif
     :: else
     fi;
     position++
  :: else -> break
  od
#endif
}

active proctype AtRest() {
  timeout;
  assert(is_gone || holders != NOBODY || epoch_moved ||
         (stamp >= head && stamp < tail && ring[stamp]))
}

/* Three processes at a time are enough for every race of two processes with a third one beside
 * them. All five at once have more interleavings than fit into memory. */
init {
  atomic {
    if :: gives_chances = true; is_hit = true :: gives_chances = true :: skip fi;
    if
    :: run Releaser(RELEASER); run Evictor(); run Evictor()
    :: run Releaser(RELEASER); run Holder(); run Evictor()
    :: holders = RELEASER | RELEASER_TOO;
       run Releaser(RELEASER); run Releaser(RELEASER_TOO); run Evictor()
    fi
  }
}
