"""Processes that a scene starts: other users, and what /proc says about the daemon's."""

import contextlib
import json
import os
import signal
import sys
import time
import traceback


def children_of(pid):
    """Of all its threads: a keeper's actor forks, not its first thread."""
    children = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{task}/children") as file:
                children += [int(child) for child in file.read().split()]
    return children


def descendants_of(pid):
    found = new = [pid]
    while new:
        new = [child for parent in new for child in children_of(parent)]
        found = found + new
    return found[1:]


def program_of(pid):
    """The name of the program, whatever name the process shows; None = it is gone or a zombie."""
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    except OSError:
        return None


def status_kb(pid, field):
    try:
        with open(f"/proc/{pid}/status") as file:
            for line in file:
                if line.startswith(field + ":"):
                    return int(line.split()[1])
    except OSError:
        pass
    return 0


class Player:
    """A forked process of user `uid` that plays `act(say)`. What it says by say() arrives here."""

    def __init__(self, act, uid, is_idle=True):
        self.reader, writer = os.pipe()
        os.set_blocking(self.reader, False)
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.reader)
            self._play(act, uid, is_idle, writer)
        os.close(writer)
        self.unread = b""

    @staticmethod
    def _play(act, uid, is_idle, writer):
        try:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.alarm(0)
            if is_idle:  # it gets a processor only when no other process wants it
                os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
            if uid != 0:
                os.setgroups([])
                os.setgid(uid)
                os.setuid(uid)
            act(lambda words: os.write(writer, (json.dumps(words) + "\n").encode()))
            while True:  # what it holds stays held
                signal.pause()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)

    def heard(self):
        """All that it has said since the last call."""
        try:
            while piece := os.read(self.reader, 65536):
                self.unread += piece
        except BlockingIOError:
            pass
        *lines, self.unread = self.unread.split(b"\n")
        return [json.loads(line) for line in lines]

    def wait_for_word(self, seconds):
        """The last thing said, waiting for the first; None = nothing within `seconds`."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if words := self.heard():
                return words[-1]
            time.sleep(0.02)
        return None

    def has_failed(self):
        """True = an error of its own has ended it, and it harms nobody any more."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def end(self):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.reader)
