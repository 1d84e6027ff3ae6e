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


def hellos_that_linger(path, say):
    """The first attacker's descriptors stay open at their other end for as long as it lives."""
    held = []
    for _ in range(3):
        sender, listener = wire.lingering_socket(LINGER_SECONDS)
        held.append(listener)
        peer = wire.connect(path)
        held.append(peer)
        taken = wire.send_descriptors(peer, wire.hello(), [sender.fileno()])
        if not taken:
            listener.close()  # else this process would linger itself
        sender.close()
        say({"taken": taken})

    signal.pause()


@on_stage("S1", "a stranger's hello carries a TCP socket whose close takes 40 s, three times")
def lingering_hello(build):
    with Stage(build) as stage:
        stage.calm()
        with stage.harm():
            attacker = stage.play(lambda say: hellos_that_linger(stage.socket, say))
            word = attacker.wait_for_word(5) or {}
            time.sleep(12)
        taken = "the keeper took it" if word.get("taken") else "the kernel refused to pass it on"
        return stage.row(f"{taken}; longest wait of who connects {stage.longest('anew')}")


def lingering_over_the_bell(path, engine, say):
    channel = wire.Channel(path, engine=engine)
    held = [channel]
    for fd in channel.fds[1:]:
        sender, listener = wire.lingering_socket(LINGER_SECONDS)
        held.append(listener)
        taken = "socket:" in os.readlink(f"/proc/self/fd/{fd}")
        if taken:
            with socket.socket(fileno=os.dup(fd)) as bell:
                taken = wire.send_descriptors(bell, b"x", [sender.fileno()])
        if not taken:
            listener.close()
        sender.close()
        say({"taken": taken})
    signal.pause()


@on_stage("S1", "the same over a doorbell, to each of both engines")
def lingering_bell(build):
    with Stage(build) as stage:
        stage.calm()
        with stage.harm():
            attackers = [stage.play(lambda say, e=e: lingering_over_the_bell(stage.socket, e, say))
                         for e in (0, 1)]
            time.sleep(12)
        taken = sum(word["taken"] for a in attackers for word in a.heard())
        return stage.row(f"{taken} of 4 sockets taken by engines; longest wait of a connected "
                         f"client {stage.longest('connected')}")


def churn(path, engine, limit, say):
    """Opens and closes channels of one engine. The engine's answers are not waited for long."""
    opened = 0
    for _ in range(limit):
        try:
            wire.Channel(path, engine=engine, timeout=0.5).close()
            opened += 1
        except OSError:
            pass
        say(opened)
    signal.pause()


@on_stage("S2", "engine 0 is stopped; a stranger opens and closes 300 channels of it")
def churn_beside_a_stopped_engine(build):
    with Stage(build, honest_engine=1) as stage:
        stage.calm()
        stopped = stage.engine_pid(0)
        os.kill(stopped, signal.SIGSTOP)
        time.sleep(0.5)
        with stage.harm():
            attacker = stage.play(lambda say: churn(stage.socket, 0, 300, say))
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
            churners = [stage.play(lambda say, e=e: churn(stage.socket, e % 2, 100000, say),
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
