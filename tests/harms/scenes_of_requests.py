"""S3, S4, S7, S12: what is in a channel, and engines that die beside it."""

import functools
import json
import pathlib
import shutil
import tempfile
import time

import honest
import library
import tracer
import wire
from scene import scene
from stage import MODEL, Stage

SCENES = []
on_stage = functools.partial(scene, SCENES)


# -- S3 -------------------------------------------------------------------------------------------

SLEEP_LIMIT = 4.0


def sleep_until_it_ends(client):
    """(seconds, None) of a request of one token that is only read after a ring; a client that is
    not rung sleeps for ever, and what its request was meanwhile comes instead of None."""
    begin = time.monotonic()
    number = client.submit(honest.PROMPT)
    while True:
        asleep = time.monotonic()
        client.wait(SLEEP_LIMIT)
        slept = time.monotonic() - asleep
        progress = client.read(number)
        if progress.finish:
            return (time.monotonic() - begin,
                    "the request had ended" if slept >= SLEEP_LIMIT else None)
        if slept >= SLEEP_LIMIT:
            return time.monotonic() - begin, "the request had not ended"


@on_stage("S3", "the engine is killed just before it rings the client, whose request has ended")
def killed_before_the_ring(build):
    with Stage(build, honest_clients=False) as stage:
        calm, during, asleep = [], [], []
        client = library.Client(stage.socket)
        for _ in range(200):
            calm.append((sleep_until_it_ends(client)[0], True))
        kills = 0
        end = time.monotonic() + 45
        for _ in range(8):
            if time.monotonic() > end:
                break
            victim = pid_of_its_engine(stage, client)
            tracing = stage.play(lambda say: tracer.kill_at_ring(victim, 1, say), uid=0)
            word = tracing.wait_for_word(5)
            if word != "ready":
                raise RuntimeError(f"the tracer says {word}")
            seconds, state = sleep_until_it_ends(client)
            during.append((seconds, state is None))
            if state:
                asleep.append(state)
            time.sleep(0.1)
            was_killed = "killed" in tracing.heard()
            kills += was_killed
            stage.killed += was_killed
            stage.players.remove(tracing)
            tracing.end()
            if was_killed:
                client.close()
                client = library.Client(stage.socket)
        slept = f" ({', '.join(sorted(set(asleep)))})" if asleep else ""
        row = stage.row(f"{kills} kills; {len(asleep)} clients slept for more than "
                        f"{SLEEP_LIMIT:.0f} s without a ring{slept}")
        row["connected"] = (honest.in_words(sorted(calm)) + " → " + honest.in_words(sorted(during)))
        client.close()
        return row


def pid_of_its_engine(stage, client):
    """Of the engine that serves the client, once one does and both engines run."""
    end = time.monotonic() + 8
    while time.monotonic() < end:
        number = client.serving_engine()
        pids = (stage.engine_pid(0), stage.engine_pid(1))
        if number >= 0 and all(pids):
            return pids[number]
        time.sleep(0.02)
    raise RuntimeError("no engine serves the client 8 s after a kill")


# -- S4 -------------------------------------------------------------------------------------------


def same_gigabyte(path, engine, say):
    """All 256 slots of a channel name the same tokens, as many as fit; again when refused."""
    size = 1 << 30
    while True:
        try:
            channel = wire.Channel(path, size, engine, timeout=20, maps=True)
            break
        except ConnectionError:
            size //= 2
    say(size)
    while True:
        channel.name_the_same_tokens(size - (4 << 20))
        channel.ring()
        time.sleep(0.005)


@on_stage("S4", "a stranger's channel of 1 GiB: all slots name the same prompt of 1 GiB of tokens")
def long_token_prompts(build):
    with Stage(build) as stage:
        stage.calm()
        before = stage.watch.most_engine_kb
        with stage.harm():
            attackers = [stage.play(lambda say, e=e: same_gigabyte(stage.socket, e, say),
                                    uid=4200 + e) for e in (0, 1)]
            time.sleep(15)
        sizes = [(a.heard() or [0])[-1] >> 20 for a in attackers]
        return stage.row(f"channels of {sizes[0]} and {sizes[1]} MiB; an engine's own memory "
                         f"{before / 1024:.0f} MiB before, {stage.watch.most_engine_kb / 1024:.0f} "
                         "MiB at most")


# -- S7 -------------------------------------------------------------------------------------------


QUEUED, TOKENS_EACH = 64, 600


def queue_requests(path, say):
    client = library.Client(path, channel_bytes=16 << 20)
    begin = time.monotonic()
    waiting = [client.submit(b"A story about number %d:" % i, TOKENS_EACH) for i in range(QUEUED)]
    news = {"waiting": QUEUED, "refused": 0, "tokens": 0, "why": "", "first": []}
    seen, told = set(), 0.0
    while waiting:
        client.wait(0.2)
        for number in list(waiting):
            progress = client.read(number)
            news["tokens"] += progress.token_count
            if progress.token_count and number not in seen:
                seen.add(number)
                news["first"].append((time.monotonic() - begin, True))
            if progress.finish:
                waiting.remove(number)
            if progress.finish == library.ENDED_BY_ERROR:
                news["refused"] += 1
                news["why"] = progress.error_text.decode()
        news["waiting"] = len(waiting)
        if not waiting or time.monotonic() - told > 0.02:
            told = time.monotonic()
            say(news)


def play_queue(stage, kills):
    """The client's last news. The engine is killed so many times, each time after it has generated
    100 tokens more."""
    client = stage.play(lambda say: queue_requests(stage.socket, say), uid=honest.HONEST_USER)
    news, killed, next_kill = client.wait_for_word(10), 0, 100
    end = time.monotonic() + 35
    while news["waiting"] and time.monotonic() < end:
        if killed < kills and news["tokens"] >= next_kill and (pid := stage.engine_pid()):
            stage.kill_engine(pid)
            killed += 1
            time.sleep(0.3)  # so that what the old engine wrote has been read
            next_kill = (client.heard() or [news])[-1]["tokens"] + 100
        time.sleep(0.01)
        news = (client.heard() or [news])[-1]
    never = QUEUED - len(news["first"])
    return news, sorted(news["first"]) + [(35.0, False)] * never


@on_stage("S7", "64 honest requests, 4 run at once; their only engine is killed four times")
def kills_beside_a_queue(build):
    with Stage(build, engines=1, honest_clients=False, flags=("--max-num-seqs", "4")) as stage:
        _, calm = play_queue(stage, 0)
        news, during = play_queue(stage, 4)
        row = stage.row(f"{news['refused']} of {QUEUED} requests refused"
                        + (f" (\"{news['why']}\")" if news["why"] else "")
                        + "; the times are theirs")
        row["connected"] = honest.in_words(calm) + " → " + honest.in_words(during)
        return row


# -- S12 ------------------------------------------------------------------------------------------


def model_with_nfc(folder):
    """The demo model with the normalizer that Qwen's tokenizers have."""
    model = pathlib.Path(folder) / "demo-nfc"
    shutil.copytree(MODEL, model)
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    tokenizer["normalizer"] = {"type": "NFC"}
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = json.loads((model / "config.json").read_text())
    config["max_position_embeddings"] = 1 << 15  # else 262 kB are refused by their length alone
    (model / "config.json").write_text(json.dumps(config))
    return model


def send_marks(path, engine, bytes_of_text, say):
    """Texts of combining marks out of order, again when refused."""
    text = ("a" + "\u0301\u0316" * (bytes_of_text // 4)).encode()[:bytes_of_text - 1]
    client = library.Client(path, engine=engine, channel_bytes=4 << 20)
    took, why = [], ""
    while True:
        begin = time.monotonic()
        try:
            client.first_token(text)
            why = "accepted"
        except library.Refused as refused:
            why = str(refused)
        took.append(time.monotonic() - begin)
        say({"took": took, "why": why})
        time.sleep(0.2)


def play_marks(build, bytes_of_text, seconds):
    with tempfile.TemporaryDirectory(prefix="kvhive-nfc-") as folder, \
            Stage(build, model=model_with_nfc(folder), pool="128M") as stage:
        stage.calm()
        with stage.harm():
            senders = [stage.play(lambda say, e=e: send_marks(stage.socket, e, bytes_of_text, say),
                                  uid=4200 + e) for e in (0, 1)]
            time.sleep(seconds)
        words = [said[-1] for sender in senders if (said := sender.heard())]
        took = [one for word in words for one in word["took"]]
        answered = f"{len(took)} texts answered, the slowest after {max(took):.2f} s " \
                   f"(\"{words[0]['why'][:60]}...\")" if took \
            else f"no text answered in {seconds} s"
        return stage.row(f"{answered}; longest wait of a connected client "
                         f"{stage.longest('connected')}")


@on_stage("S12", "a text of 65 kB of combining marks out of order, to each engine (NFC tokenizer)")
def marks_of_65_kb(build):
    return play_marks(build, 65_000, 12)


@on_stage("S12", "the same with 262 kB")
def marks_of_262_kb(build):
    return play_marks(build, 262_000, 20)
