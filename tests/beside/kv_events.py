#!/usr/bin/env python3
"""A subscriber that decodes kvhive's KV events with vLLM's own classes, and must end with the pool's exact content.

Takes nothing from vLLM but the file of its events: vllm/distributed/kv_events.py, out of the wheel, with empty modules for what it imports.
"""
import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import types
import zipfile

import msgspec
import zmq

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = ROOT / "build/bin"
KEPT = ROOT / "build/beside/vllm-events"
FILE = "vllm/distributed/kv_events.py"
MAPS, ARRAYS = "0.33.0", "0.18.0"  # with events as maps, and the last that was tried with arrays
END = (2**64 - 1).to_bytes(8, "big")
failed = 0


def check(what, fine, seen=""):
    global failed
    failed += not fine
    print(f"{'ok    ' if fine else 'FAILED'} {what}{'' if fine else f': {seen!r}'}", flush=True)


def classes_of(version):
    """vLLM's module of KV events."""
    kept = KEPT / f"kv_events-{version}.py"
    if not kept.exists():
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
                            "--only-binary=:all:", "--dest", folder, f"vllm=={version}"], check=True)
            wheel = next(pathlib.Path(folder).glob("*.whl"))
            kept.write_bytes(zipfile.ZipFile(wheel).read(FILE))
    anything = {"KVEventsConfig": object, "ExternalBlockHash": bytes | int, "init_logger": lambda name: None}
    for name in ("vllm", "vllm.config", "vllm.config.kv_events", "vllm.logger", "vllm.utils", "vllm.utils.network_utils", "vllm.v1",
                 "vllm.v1.core", "vllm.v1.core.kv_cache_utils"):
        module = types.ModuleType(name)
        module.__getattr__ = lambda wanted: anything.get(wanted, object)
        module.__path__ = []
        sys.modules[name] = module
    spec = importlib.util.spec_from_file_location(f"kv_events_{version.replace('.', '_')}", kept)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class Subscriber:
    """As vLLM's examples/online_serving/kv_events_subscriber.py: live batches, and a replay after a gap."""

    def __init__(self, context, vllm, events, replays):
        self.vllm = vllm
        self.decoder = msgspec.msgpack.Decoder(type=vllm.KVEventBatch)
        self.live = context.socket(zmq.SUB)
        self.live.connect(events)
        self.live.setsockopt_string(zmq.SUBSCRIBE, "kv@")
        self.asker = context.socket(zmq.DEALER)
        self.asker.connect(replays)
        self.next = 0
        self.blocks = {}
        self.batches = 0

    def follow(self, quiet_ms=300):
        while self.live.poll(quiet_ms):
            _, number, batch = self.live.recv_multipart()
            number = int.from_bytes(number, "big")
            if number > self.next:
                self.replay()
            if number >= self.next:
                self.apply(batch)
                self.next = number + 1

    def replay(self):
        self.asker.send_multipart([b"", self.next.to_bytes(8, "big")])
        while True:
            _, _, number, batch = self.asker.recv_multipart()
            if number == END:
                return
            self.apply(batch)
            self.next = int.from_bytes(number, "big") + 1

    def apply(self, batch):
        self.batches += 1
        for event in self.decoder.decode(batch).events:
            if isinstance(event, self.vllm.BlockStored):
                size, parent = event.block_size, event.parent_block_hash
                extras = event.extra_keys or [None] * len(event.block_hashes)
                assert len(event.token_ids) == size * len(event.block_hashes) and len(extras) == len(event.block_hashes)
                for i, (name, extra) in enumerate(zip(event.block_hashes, extras)):
                    self.blocks[name, event.medium] = (parent, tuple(event.token_ids[size * i:size * (i + 1)]), extra)
                    parent = name
            elif isinstance(event, self.vllm.BlockRemoved):
                for name in event.block_hashes:
                    del self.blocks[name, event.medium]
            else:
                assert isinstance(event, self.vllm.AllBlocksCleared), event
                self.blocks.clear()


class Hive:
    def __init__(self, folder):
        self.socket = f"{folder}/kvhived.sock"
        self.daemon = subprocess.Popen([BIN / "kvhived", "--model", ROOT / "models/demo", "--engines", "2", "--kv-cache-memory-bytes", "2M",
                                        "--swap-space", "1M", "--domains", "team=daemon", "--socket-access", "everybody", "--threads", "1", "--log-level", "off", "--socket", self.socket],
                                       stdout=subprocess.PIPE, text=True)
        self.daemon.stdout.readline()
        # The domain of the daemon's own user has no name in events, so another user asks.
        self.user = "daemon" if os.getuid() == 0 else None
        os.chmod(folder, 0o755)
        self.client = shutil.copy(BIN / "kvhive", folder)
        self.text = (ROOT / "models/demo/passage.txt").read_text()

    def run(self, *command):
        return subprocess.run([BIN / "kvhive", *command, "--socket", self.socket], capture_output=True, text=True, check=True).stdout

    def generate(self, number):
        prompt = f"{number % 17} " + self.text[97 * (number % 23):][:700]
        subprocess.run([self.client, "generate", "--prompt", prompt, "--max-tokens", "8", "--socket", self.socket], user=self.user, cwd="/",
                       capture_output=True, check=True)

    def kill_an_engine(self):
        engines = [p for p in json.loads(self.run("pool", "procs", "--format", "json"))["processes"] if p.get("engine") == 0]
        subprocess.run(["kill", "-9", str(engines[0]["pid"])], check=True)

    def content(self, form):
        """What kvhive watch sees now, named as the events name it."""
        def name(text):
            return None if text is None else int(text[16:], 16) if form == "integers" else bytes.fromhex(text)
        told = map(json.loads, self.run("watch", "--blocks", "--count", "1").splitlines())
        return {(name(b["block"]), {"device": "GPU", "host": "CPU"}[b["tier"]]): (name(b["parent"]), tuple(b["tokens"]))
                for b in told if b["event"] == "block_stored"}

    def stop(self):
        self.run("stop")
        self.daemon.wait()


class Events:
    def __init__(self, hive, *flags):
        self.process = subprocess.Popen([BIN / "kvhive", "events", "--socket", hive.socket, "--endpoint", "tcp://127.0.0.1:*",
                                         "--replay-endpoint", "tcp://127.0.0.1:*", "--topic", "kv@here@demo", "--interval", "0.01", *flags],
                                        stdout=subprocess.PIPE, text=True)
        self.endpoint, self.replays = self.process.stdout.readline().strip().removeprefix("events on ").split(", replays on ")

    def stop(self):
        self.process.terminate()
        return self.process.wait()


def same(subscriber, hive, form):
    for _ in range(20):
        subscriber.follow()
        seen = {key: value[:2] for key, value in subscriber.blocks.items()}
        wanted = hive.content(form)
        if seen == wanted:
            return True, len(seen)
    return False, (len(seen), len(wanted), len(seen.keys() - wanted.keys()), len(wanted.keys() - seen.keys()))


def compare(version, context, hive, events_form, hashes):
    vllm = classes_of(version)
    events = Events(hive, "--events", events_form, "--hashes", hashes)
    subscriber = Subscriber(context, vllm, events.endpoint, events.replays)
    subscriber.replay()
    for number in range(40):
        if number == 20:
            hive.kill_an_engine()
        hive.generate(number)
    fine, seen = same(subscriber, hive, hashes)
    late = Subscriber(context, vllm, events.endpoint, events.replays)
    late.replay()
    what = f"vLLM {version}, {events_form}, {hashes}"
    check(f"{what}: {len(subscriber.blocks)} blocks in {subscriber.batches} batches are the pool's content", fine, seen)
    check(f"{what}: evictions were among them, and both tiers",
          json.loads(hive.run("pool", "stat", "--format", "json"))["evicted_blocks"] > 0
          and {medium for _, medium in subscriber.blocks} == {"GPU", "CPU"})
    check(f"{what}: who comes late has the same by a replay", late.blocks == subscriber.blocks)
    check(f"{what}: parents are there", all((p, m) in subscriber.blocks or any(k[0] == p for k in subscriber.blocks)
                                            for (_, m), (p, _, _) in subscriber.blocks.items() if p is not None))
    if hive.user:
        check(f"{what}: a prompt's first block names its domain", all(tuple(extra or ()) == (("team",) if parent is None else ())
                                                                      for parent, _, extra in subscriber.blocks.values()))
    else:
        print(f"       {what}: names of domains: not tried, which needs root")
    events.stop()


def main():
    context = zmq.Context()
    context.setsockopt(zmq.LINGER, 0)
    context.setsockopt(zmq.RCVTIMEO, 20_000)
    with tempfile.TemporaryDirectory() as folder:
        hive = Hive(folder)
        try:
            compare(MAPS, context, hive, "maps", "integers")
            compare(MAPS, context, hive, "maps", "bytes")
            compare(ARRAYS, context, hive, "arrays", "integers")
            last = Events(hive)
            vllm = classes_of(MAPS)
            subscriber = Subscriber(context, vllm, last.endpoint, last.replays)
            subscriber.replay()
            check("a hive with content", len(subscriber.blocks) > 0)
        finally:
            hive.stop()
        subscriber.follow(1000)
        check("the daemon's end clears all", not subscriber.blocks, len(subscriber.blocks))
        check("kvhive events ends quietly", last.stop() == 0)
    return failed != 0


sys.exit(main())
