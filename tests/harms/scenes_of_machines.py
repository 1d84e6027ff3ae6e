"""S5, S6, S8, S10, S11: the log's reader, core dumps, memory, stopped processes, locks, pool."""

import fcntl
import functools
import os
import pathlib
import resource
import select
import signal
import subprocess
import time

import honest
import library
import wire
from scene import scene
from stage import MODEL, Stage

SCENES = []
on_stage = functools.partial(scene, SCENES)


# -- S5 -------------------------------------------------------------------------------------------


def say_bad_hellos(path, count, say):
    answered = 0
    for _ in range(count):
        try:
            with wire.connect(path, 3.0) as peer:
                peer.send(wire.packet(wire.CLIENT_HELLO, bytes(16), as_version=0))
                if peer.recv(4096):
                    answered += 1
        except TimeoutError:
            break
        except OSError:
            continue  # closed without an answer
        if answered % 50 == 0:
            say(answered)
    say(answered)
    signal.pause()


@on_stage("S5", "nobody reads standard error, a pipe; a stranger says 3,000 bad hellos")
def stuck_reader(build):
    reader, writer = os.pipe()
    try:
        with Stage(build, stderr=writer) as stage:
            stage.calm()
            with stage.harm():
                attacker = stage.play(lambda say: say_bad_hellos(stage.socket, 3000, say))
                time.sleep(12)
            answered = (attacker.heard() or ["fewer than 50"])[-1]
            return stage.row(f"{answered} of 3,000 bad hellos answered; longest wait of who "
                             f"connects {stage.longest('anew')}")
    finally:
        os.close(reader)
        os.close(writer)


@on_stage("S5", "the reader of standard error ends; a stranger says 100 bad hellos")
def dead_reader(build):
    reader = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    with Stage(build, stderr=reader.stdin) as stage:
        reader.stdin.close()
        stage.calm()
        with stage.harm():
            reader.kill()
            reader.wait()
            stage.play(lambda say: say_bad_hellos(stage.socket, 100, say))
            time.sleep(4)
        code = stage.daemon.poll()
        return stage.row("the daemon lives" if code is None else
                         f"the daemon ended by signal {-code}, and the pool with it")


# -- S6 -------------------------------------------------------------------------------------------

SECRET = b"the secret word of another user is xylophone-8261"
ABORT = signal.SIGABRT


def keep_a_secret_prompt(path, say):
    client = library.Client(path, channel_bytes=4 << 20)
    client.first_token(SECRET * 4)
    say("sent")
    signal.pause()


def find_cores(folder):
    return [file for file in folder.iterdir() if file.name.startswith("core")]


def contains(file, secret):
    overlap = b""
    with open(file, "rb") as core:
        while piece := core.read(16 << 20):
            if secret in overlap + piece:
                return True
            overlap = piece[-len(secret):]
    return False


@on_stage("S6", "ulimit -c unlimited, a pool of 2 GiB; an engine dies by SIGABRT")
def core_dump(build):
    pattern = pathlib.Path("/proc/sys/kernel/core_pattern").read_text().strip()
    if pattern.startswith(("|", "/")):
        return {"symptom": f"**NOT RUN**: core_pattern is '{pattern}', not a file beside the daemon"}
    limits = [(resource.RLIMIT_CORE, resource.RLIM_INFINITY)]
    with Stage(build, pool="2G", limits=limits) as stage:
        secret = stage.play(lambda say: keep_a_secret_prompt(stage.socket, say))
        if not secret.wait_for_word(10):
            raise RuntimeError("the secret prompt was not answered")
        stage.calm()
        with stage.harm():
            seconds = []
            for number in (0, 1):
                victim = stage.engine_pid(number)
                pidfd = os.pidfd_open(victim)
                begin = time.monotonic()
                stage.kill_engine(victim, ABORT)
                fired, _, _ = select.select([pidfd], [], [], 20)
                seconds.append(f"{time.monotonic() - begin:.2f}" if fired else "> 20")
                os.close(pidfd)
                time.sleep(1)
        cores = find_cores(stage.folder)
        size = sum(core.stat().st_blocks * 512 for core in cores) >> 20
        has_secret = any(contains(core, SECRET) for core in cores)
        found = f"{len(cores)} core files, {size} MiB; another user's prompt is " \
                f"{'in them' if has_secret else 'not in them'}" if cores else "no core file"
        return stage.row(f"the pidfds fired after {' and '.join(seconds)} s; {found}")


# -- S8 -------------------------------------------------------------------------------------------

LIMIT = 600 << 20
CGROUPS = pathlib.Path("/sys/fs/cgroup/memory")


def take_all_memory(path, say):
    """Then long prompts over a channel that it has had before: engines need memory to compute."""
    client = library.Client(path, channel_bytes=16 << 20)
    held, size = [], 256 << 20
    end = time.monotonic() + 4
    while time.monotonic() < end:
        try:
            held.append(wire.Channel(path, size, timeout=2))
            say(sum(os.fstat(channel.fds[0]).st_size for channel in held))
        except OSError:
            size = max(1 << 20, size // 2)
            time.sleep(0.01)
    for number in range(1 << 30):  # one at a time: a valid request costs what it computes
        try:
            client.first_token(b"%d " % number + b"and the words of it " * 600)
        except library.Refused:
            time.sleep(0.1)


def oom_kills(group):
    for line in (group / "memory.oom_control").read_text().splitlines():
        if line.startswith("oom_kill "):
            return int(line.split()[1])
    return 0


@on_stage("S8", "a cgroup of 600 MiB; a stranger takes channels until none is given, then sends one "
                "long prompt after the other")
def last_byte(build):
    if not (CGROUPS / "memory.limit_in_bytes").exists():
        return {"symptom": f"**NOT RUN**: no memory controller of cgroup version 1 at {CGROUPS}"}
    group = CGROUPS / f"kvhive-harms-{os.getpid()}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(LIMIT))
        enter = lambda: (group / "cgroup.procs").write_text(str(os.getpid()))
        with Stage(build, pool="128M", prepare=enter) as stage:
            stage.calm()
            with stage.harm():
                attacker = stage.play(lambda say: take_all_memory(stage.socket, say))
                time.sleep(15)
            taken = (attacker.heard() or [0])[-1] >> 20
            kills = oom_kills(group)
            refused = len(stage.clients["anew"].all_refusals())
            return stage.row(f"{taken} MiB of channels given; {kills} OOM kills; {refused} "
                             "refusals to honest clients")
    finally:
        remove(group)


def remove(group):
    for _ in range(500):
        try:
            return group.rmdir()
        except OSError:
            time.sleep(0.02)


# -- S10 ------------------------------------------------------------------------------------------


def start_second(stage, socket):
    return subprocess.Popen(
        [stage.build.bin / "kvhived", "--model", MODEL, "--kv-cache-memory-bytes", "64M",
         "--socket", socket], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, cwd=stage.folder)


def how_it_ends(daemon, seconds):
    """What a second daemon does within so many seconds, and what it does on SIGTERM then."""
    begin = time.monotonic()
    try:
        output, _ = daemon.communicate(timeout=seconds)
        last = output.strip().splitlines()[-1] if output.strip() else ""
        return f"ends after {time.monotonic() - begin:.1f} s: \"{shorten(last)}\""
    except subprocess.TimeoutExpired:
        pass
    begin = time.monotonic()
    daemon.send_signal(signal.SIGTERM)
    try:
        daemon.communicate(timeout=5)
        heard = f"SIGTERM heard after {time.monotonic() - begin:.2f} s"
    except subprocess.TimeoutExpired:
        heard = "SIGTERM not heard in 5 s"
        daemon.kill()
        daemon.communicate()
    return f"hangs for {seconds} s; {heard}"


def shorten(text, most=160):
    return text if len(text) <= most else text[:most] + "..."


def fill_the_backlog(path, say):
    held = []
    while True:
        peer = wire.socket.socket(wire.socket.AF_UNIX, wire.socket.SOCK_SEQPACKET)
        peer.setblocking(False)
        try:
            peer.connect(str(path))
        except BlockingIOError:
            break
        held.append(peer)
    say(len(held))
    signal.pause()


@on_stage("S10", "kvhived is stopped, its queue of connections full; a second kvhived starts there")
def stopped_keeper(build):
    with Stage(build) as stage:
        stage.calm()
        keeper = stage.keeper_pid()
        os.kill(keeper, signal.SIGSTOP)
        with stage.harm():
            if not stage.play(lambda say: fill_the_backlog(stage.socket, say)).wait_for_word(5):
                raise RuntimeError("the keeper's queue of connections could not be filled")
            second = how_it_ends(start_second(stage, stage.socket), 15)
            time.sleep(4)
        os.kill(keeper, signal.SIGCONT)
        return stage.row(f"the second kvhived {second} (who connects waits for the stopped keeper)")


@on_stage("S10", "the steward is stopped; engines are killed, ten times in all")
def stopped_steward(build):
    with Stage(build) as stage:
        stage.calm()
        steward = stage.steward_pid()
        os.kill(steward, signal.SIGSTOP)
        with stage.harm():
            killed = set()
            end = time.monotonic() + 12
            while len(killed) < 10 and time.monotonic() < end:
                for number in (0, 1):
                    if (pid := stage.engine_pid(number)) and pid not in killed:
                        stage.kill_engine(pid)
                        killed.add(pid)
                time.sleep(0.3)
            _, _, procs = stage.kvhive("pool", "procs")
            code, _, fsck = stage.kvhive("pool", "fsck")
            time.sleep(14)
        replaced = stage.steward_pid() not in (steward, None)
        if not replaced:
            os.kill(steward, signal.SIGCONT)
        waiting = sum("waits for the steward" in line for line in procs.splitlines())
        last = fsck.strip().splitlines()[-1] if fsck.strip() else ""
        return stage.row(f"{len(killed)} killed, none swept; `pool procs` names {waiting} that "
                         f"wait for the steward; `fsck`: exit code {code}, \"{shorten(last, 90)}\"; "
                         f"12 s later the steward {'was replaced' if replaced else 'is the same'}")


def keep_the_lock(folder, say):
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    say("locked")
    signal.pause()


@on_stage("S10", "another user holds a flock on the socket's sticky directory; kvhived starts")
def foreign_lock(build):
    with Stage(build, mode=0o1777) as stage:
        stage.calm()
        with stage.harm():
            folder = stage.folder / "shared"
            folder.mkdir()
            folder.chmod(0o1777)
            locker = stage.play(lambda say: keep_the_lock(folder, say))
            if locker.wait_for_word(5) != "locked":
                raise RuntimeError("the directory could not be locked")
            daemon = start_second(stage, folder / "kvhived.sock")
            began = how_it_starts(daemon, folder / "kvhived.sock", 8)
        return stage.row(f"the kvhived {began}")


def how_it_starts(daemon, socket, seconds):
    begin = time.monotonic()
    while time.monotonic() < begin + seconds and daemon.poll() is None:
        try:
            client = library.Client(socket)
            client.first_token(honest.PROMPT)
            client.close()
            took = time.monotonic() - begin
            daemon.terminate()
            daemon.communicate(timeout=10)
            return f"serves after {took:.1f} s"
        except library.Refused:
            time.sleep(0.05)
    return how_it_ends(daemon, 1)


# -- S11 ------------------------------------------------------------------------------------------


@on_stage("S11", "a generation that wraps; marks in the index; a pidfd of a process without pid")
def used_again(build):
    return {"symptom": "**not reached**: 2^28 reallocations of a block and duplicates in the index "
                       "need a process that maps the pool, the last one a PID namespace. Tests: "
                       "`tests/pool/block_view_test.cpp`, `tests/crash/kill_point_test.cpp` "
                       "(`Race`), `tests/pool/care/index_marks_test.cpp`, "
                       "`tests/tools/connections_test.cpp` (`APeerWithoutAPid...`)"}
