"""S1, S2, S9: what a stranger does on the daemon's socket."""

import functools
import os
import resource
import signal
import socket
import time

import wire
from scene import scene
from stage import Stage

SCENES = []
on_stage = functools.partial(scene, SCENES)
LINGER_SECONDS = 40


def send_lingering(peer, data, say):
    """The sender's own copy is closed at once: the receiver must be the last that closes it. So
    these attackers have the usual priority."""
    sender, listener = wire.lingering_socket(LINGER_SECONDS)
    is_taken = wire.send_descriptors(peer, data, [sender.fileno()])
    if not is_taken:
        listener.close()  # else this process would linger itself
    sender.close()
    say(is_taken)
    signal.pause()  # the listener stays open


def linger_in_a_hello(path, say):
    send_lingering(wire.connect(path), wire.hello(), say)


def count_taken(attackers):
    """In words. One that has said nothing closed its socket last, and lingers itself."""
    said = [attacker.wait_for_word(0.1) for attacker in attackers]
    return (f"of {len(said)} such sockets {said.count(True)} were passed on, {said.count(False)} "
            "refused")


@on_stage("S1", "strangers' hellos carry TCP sockets whose close takes 40 s")
def lingering_hellos(build):
    with Stage(build) as stage:
        stage.calm()
        with stage.harm():
            attackers = [stage.play(lambda say: linger_in_a_hello(stage.socket, say), is_idle=False)
                         for _ in range(4)]
            time.sleep(12)
        return stage.row(f"{count_taken(attackers)}; longest wait of who connects "
                         f"{stage.longest('anew')}")


def linger_over_a_bell(path, engine, bell_number, say):
    channel = wire.Channel(path, engine=engine)
    bell = channel.fds[bell_number]
    if "socket:" not in os.readlink(f"/proc/self/fd/{bell}"):
        say(False)  # an eventfd carries no descriptors
        signal.pause()
    send_lingering(socket.socket(fileno=bell), b"x", say)


@on_stage("S1", "the same over doorbells, to both engines")
def lingering_bells(build):
    with Stage(build) as stage:
        stage.calm()
        with stage.harm():
            attackers = [
                stage.play(lambda say, e=e, b=b: linger_over_a_bell(stage.socket, e, b, say),
                           is_idle=False)
                for e in (0, 1) for b in (1, 2)]
            time.sleep(12)
        return stage.row(f"{count_taken(attackers)}; longest wait of a connected client "
                         f"{stage.longest('connected')}")


def churn(path, engine, at_once, say):
    """Opens so many channels of one engine, closes them, and so on."""
    opened = 0
    while True:
        channels = []
        for _ in range(at_once):
            try:
                channels.append(wire.Channel(path, engine=engine, timeout=0.5))
            except OSError:
                break
        for channel in channels:
            channel.close()
        opened += len(channels)
        say(opened)


@on_stage("S2", "engine 0 is stopped; a stranger opens and closes channels of it, 100 at a time")
def churn_beside_a_stopped_engine(build):
    with Stage(build, honest_engine=1) as stage:
        stage.calm()
        stopped = stage.engine_pid(0)
        os.kill(stopped, signal.SIGSTOP)
        time.sleep(0.5)
        with stage.harm():
            attacker = stage.play(lambda say: churn(stage.socket, 0, 100, say))
            time.sleep(10)
        opened = (attacker.heard() or [0])[-1]
        lives = stage.engine_pid(0) == stopped
        if lives:
            os.kill(stopped, signal.SIGCONT)
        return stage.row(f"{opened} channels opened and closed; the stopped engine "
                         f"{'lives' if lives else 'was killed by the keeper'}; the honest "
                         "clients are engine 1's")


@on_stage("S2", "four strangers open and close channels beside the harm of S4 (channels of 1 GiB)")
def churn_beside_long_prompts(build):
    from scenes_of_requests import same_gigabyte
    with Stage(build) as stage:
        stage.calm()
        with stage.harm():
            stage.play(lambda say: same_gigabyte(stage.socket, 0, say), uid=4201)
            stage.play(lambda say: same_gigabyte(stage.socket, 1, say), uid=4202)
            churners = [stage.play(lambda say, e=e: churn(stage.socket, e % 2, 8, say),
                                   uid=4300 + e) for e in range(4)]
            time.sleep(10)
        opened = sum((churner.heard() or [0])[-1] for churner in churners)
        return stage.row(f"{opened} channels opened and closed in 10 s")


def be_silent(path, count, say):
    held = []
    end = time.monotonic() + 30
    while time.monotonic() < end:
        held = [peer for peer in held if not has_ended(peer)]
        while len(held) < count:
            try:
                held.append(wire.connect(path, 1.0))
            except OSError:
                break
        say(len(held))
        time.sleep(0.1)


def has_ended(peer):
    peer.setblocking(False)
    try:
        return peer.recv(1 << 12) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


@on_stage("S9", "ulimit -n 1024; a stranger holds, and renews, up to 250 silent connections")
def silent_connections(build):
    with Stage(build, limits=[(resource.RLIMIT_NOFILE, 1024)]) as stage:
        stage.calm()
        with stage.harm():
            attacker = stage.play(lambda say: be_silent(stage.socket, 250, say))
            time.sleep(4)
            code, seconds, _ = stage.kvhive("pool", "stat")
            time.sleep(6)
        held = (attacker.heard() or [0])[-1]
        refused = len(stage.clients["anew"].all_refusals())
        return stage.row(f"it holds {held}; {refused} refusals to honest clients; the operator's "
                         f"`pool stat`: exit code {code} after {seconds:.2f} s")


def ask_and_leave(path, say):
    while True:
        for _ in range(60):
            try:
                with wire.connect(path, 1.0) as peer:
                    wire.say_hello(peer, 1 << 30)
            except OSError:
                pass
        time.sleep(0.05)


@on_stage("S9", "60 clients of a stranger ask for 1 GiB and leave, again and again")
def gigabytes_asked_for(build):
    with Stage(build) as stage:
        stage.calm()
        with stage.harm():
            stage.play(lambda say: ask_and_leave(stage.socket, say))
            time.sleep(15)
        return stage.row(f"longest wait of who connects {stage.longest('anew')}")


def open_many(path, count, say):
    resource.setrlimit(resource.RLIMIT_NOFILE, (20000, 20000))
    held, why = [], ""
    end = time.monotonic() + 25
    while len(held) < count and time.monotonic() < end:
        try:
            channel = wire.Channel(path)
        except OSError as refused:
            why = str(refused)
            break
        for fd in channel.fds:
            os.close(fd)
        held.append(channel)
    say({"open": len(held), "why": why})
    signal.pause()


@on_stage("S9", "2,600 channels of 1 MiB are open; the operator asks and stops")
def many_channels(build):
    flags = ("--channel-bytes-per-domain", "4G")
    with Stage(build, flags=flags, limits=[(resource.RLIMIT_NOFILE, 20000)]) as stage:
        stage.calm()
        hoarder = stage.play(lambda say: open_many(stage.socket, 2600, say), uid=0)
        word = hoarder.wait_for_word(30) or {"open": "?", "why": "it took too long"}
        with stage.harm():
            time.sleep(3)
            codes = [f"{name} {stage.kvhive('pool', name)[0]}"
                     for name in ("procs", "stat", "fsck")]
        stage.watch.end()
        code, seconds, _ = stage.kvhive("stop")
        codes.append(f"stop {code}")
        stage.stop_words = f"{seconds:.2f} (`kvhive stop`)"
        if code != 0:
            stage.stop()
        return stage.row(f"{word['open']} channels {word['why']}; exit codes: {', '.join(codes)}")
