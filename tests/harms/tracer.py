"""Kills an engine as it rings: just before its n-th call of sendto(), by ptrace.

An engine rings a client by send(), and calls sendto() for nothing else. What it says about a
request it has stored before."""

import ctypes as c
import os
import signal

libc = c.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [c.c_long, c.c_long, c.c_void_p, c.c_void_p]
libc.ptrace.restype = c.c_long
CONT_TO_CALL, SEIZE, INTERRUPT, CALL_INFO = 24, 0x4206, 0x4207, 0x420E
OPTIONS = 0x1 | 0x8  # mark stops at calls; trace new threads
SENDTO = {"x86_64": 44, "aarch64": 206}[os.uname().machine]
WALL = 0x40000000


class CallInfo(c.Structure):  # struct ptrace_syscall_info
    _fields_ = [("operation", c.c_uint8), ("padding", c.c_uint8 * 3), ("arch", c.c_uint32),
                ("instruction", c.c_uint64), ("stack", c.c_uint64), ("call", c.c_uint64),
                ("arguments", c.c_uint64 * 6), ("rest", c.c_uint64 * 4)]


def is_about_to_ring(task):
    info = CallInfo()
    libc.ptrace(CALL_INFO, task, c.sizeof(info), c.addressof(info))
    return info.operation == 1 and info.call == SENDTO  # 1 = at the entry of a call


def kill_at_ring(pid, count, say):
    """To be played as root. Says "ready", and "killed" once the engine is killed."""
    tasks = [int(task) for task in os.listdir(f"/proc/{pid}/task")]
    for task in tasks:
        if libc.ptrace(SEIZE, task, None, OPTIONS) != 0:
            say(f"ptrace: {os.strerror(c.get_errno())}")
            return
        libc.ptrace(INTERRUPT, task, None, None)
    running = 0
    while True:
        try:
            task, status = os.waitpid(-1, WALL)
        except ChildProcessError:  # the engine has ended otherwise
            return
        if not os.WIFSTOPPED(status):
            continue
        number = os.WSTOPSIG(status)
        event = status >> 16
        if number == signal.SIGTRAP | 0x80 and is_about_to_ring(task):
            count -= 1
            if count == 0:
                os.kill(pid, signal.SIGKILL)
                say("killed")
                return bury()
        passed_on = number if event == 0 and number < 0x80 and number != signal.SIGTRAP else 0
        libc.ptrace(CONT_TO_CALL, task, None, passed_on)
        running += 1
        if running == len(tasks):
            say("ready")


def bury():
    """Until the tracer has taken note of each thread's end, nobody else learns of the engine's."""
    try:
        while True:
            os.waitpid(-1, WALL)
    except ChildProcessError:
        pass
