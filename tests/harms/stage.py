"""A stage: one daemon of the build under test, honest clients, attackers, and what happens to them.
Everything that was started here is ended by pid when the stage closes."""

import contextlib
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import tempfile
import threading
import time

import honest
import library
import processes
import wire

MODEL = pathlib.Path(__file__).resolve().parents[2] / "models" / "demo"
CALM_SECONDS = 5.0
STOP_LIMIT = 10.0  # for how long a daemon that was sent SIGTERM is waited for


class Build:
    def __init__(self, folder):
        self.bin = pathlib.Path(folder).resolve()
        self.library = self.bin.parent / "lib" / "libkvhive.so.0"
        for file in (self.bin / "kvhived", self.bin / "kvhive", self.library):
            if not file.exists():
                raise SystemExit(f"{file} is missing; build the targets `programs` and `libkvhive`")

    def has_flag(self, flag):
        words = subprocess.run([self.bin / "kvhived", "--help"], capture_output=True, text=True)
        return flag in words.stdout


class EngineWatch:
    """Looks at the daemon's processes every 20 ms: which engines die, how much memory they have."""

    def __init__(self, stage):
        self.stage, self.seen, self.dead = stage, set(), set()
        self.most_engine_kb = self.most_keeper_kb = 0
        self.is_over = threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()

    def _watch(self):
        while not self.is_over.wait(0.02):
            self.look()

    def look(self):
        for pid in processes.descendants_of(self.stage.daemon.pid):
            if processes.program_of(pid) == "kvhive-engine":
                self.seen.add(pid)
        for pid in self.seen - self.dead:
            if processes.program_of(pid) != "kvhive-engine":
                self.dead.add(pid)
            self.most_engine_kb = max(self.most_engine_kb, processes.status_kb(pid, "RssAnon"))
        self.most_keeper_kb = max(self.most_keeper_kb,
                                  processes.status_kb(self.stage.keeper_pid(), "RssAnon"))

    def end(self):
        self.is_over.set()
        self.thread.join()


class Stage:
    def __init__(self, build, engines=2, honest_clients=True, honest_engine=-1, model=MODEL,
                 pool="64M", flags=(), limits=(), stderr=None, prepare=None, mode=0o755):
        self.build = build
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="kvhive-harms-"))
        self.folder.chmod(mode)
        self.socket = self.folder / "kvhived.sock"
        self.log = self.folder / "log"
        self.players, self.clients, self.killed = [], {}, 0
        self.begin = self.end = self.calm_begin = self.calm_end = None
        self.watch = None
        self.stop_words = "-"

        def become_daemon():
            for kind, limit in limits:
                resource.setrlimit(kind, (limit, limit))
            if prepare:
                prepare()

        with open(self.log, "wb") as log:
            self.daemon = subprocess.Popen(
                [build.bin / "kvhived", "--model", model, "--engines", str(engines), "--threads",
                 "1", "--kv-cache-memory-bytes", pool, "--socket", self.socket, "--socket-access",
                 "everybody", *flags],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=log if stderr is None else stderr, preexec_fn=become_daemon,
                cwd=self.folder)
        try:
            self._wait_until_it_serves()
            self.watch = EngineWatch(self)
            self.watch.look()
            if honest_clients:
                self.clients = {
                    "connected": honest.Honest(self.socket, honest_engine, 0.025, False),
                    "anew": honest.Honest(self.socket, honest_engine, 0.05, True)}
        except BaseException:
            self.close()
            raise

    def _wait_until_it_serves(self):
        end = time.monotonic() + 20
        while True:
            try:
                wire.find_version(self.socket)
                client = library.Client(self.socket)
                client.first_token(honest.PROMPT)
                client.close()
                return
            except (OSError, library.Refused) as why:
                if time.monotonic() > end or self.daemon.poll() is not None:
                    raise RuntimeError(f"the daemon does not serve: {why}; {self.tail()}") from why
                time.sleep(0.05)

    def tail(self):
        return self.log.read_text(errors="replace")[-300:].replace("\n", " | ")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    # -- the course of a scene --------------------------------------------------------------------

    def calm(self):
        time.sleep(0.5)  # so that clients have connected
        self.calm_begin = time.monotonic()
        time.sleep(CALM_SECONDS)
        self.calm_end = time.monotonic()

    @contextlib.contextmanager
    def harm(self):
        self.begin = time.monotonic()
        yield
        self.end = time.monotonic()

    def play(self, act, uid=4200, is_idle=True):
        self.players.append(processes.Player(act, uid, is_idle))
        return self.players[-1]

    def engine_pid(self, number=0):
        """The engine's pid, as the kernel has it; None = there is none now."""
        for pid in processes.descendants_of(self.daemon.pid):
            with contextlib.suppress(OSError):
                if processes.program_of(pid) == "kvhive-engine":
                    words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                    if b"--index" not in words or \
                            words[words.index(b"--index") + 1] == b"%d" % number:
                        return pid
        return None

    def steward_pid(self):
        for pid in processes.descendants_of(self.daemon.pid):
            if processes.program_of(pid) == "kvhive-steward":
                return pid
        return None

    def keeper_pid(self):
        """A child of the process that was started, which is its front; before there was a front,
        that process itself."""
        for pid in processes.children_of(self.daemon.pid):
            if processes.program_of(pid) == "kvhived":
                return pid
        return self.daemon.pid

    def kill_engine(self, pid, number=signal.SIGKILL):
        os.kill(pid, number)
        self.killed += 1

    def kvhive(self, *words, limit=15):
        """Runs a command: (exit code or None if it hung, seconds, output)."""
        begin = time.monotonic()
        try:
            ran = subprocess.run([self.build.bin / "kvhive", *words, "--socket", self.socket],
                                 capture_output=True, text=True, timeout=limit)
            return ran.returncode, time.monotonic() - begin, ran.stdout + ran.stderr
        except subprocess.TimeoutExpired:
            return None, time.monotonic() - begin, ""

    def stop(self):
        """SIGTERM, while the attackers still hold what they have."""
        if self.daemon.poll() is not None:
            self.stop_words = "had ended before"
            return
        begin = time.monotonic()
        self.watch.end()
        self.daemon.send_signal(signal.SIGTERM)
        try:
            self.daemon.wait(STOP_LIMIT)
            self.stop_words = f"{time.monotonic() - begin:.2f}"
        except subprocess.TimeoutExpired:
            self.stop_words = f"> {STOP_LIMIT:.0f}"

    # -- what it came to --------------------------------------------------------------------------

    def calm_samples(self, kind):
        return self.clients[kind].samples(self.calm_begin, self.calm_end)

    def harm_samples(self, kind):
        return self.clients[kind].samples(self.begin, self.end)

    def longest(self, kind):
        """The longest wait of an honest client during the harm, in words."""
        return honest.percentile(self.harm_samples(kind), 1.0) + " ms"

    def row(self, symptom):
        if any(player.has_failed() for player in [*self.players,
                                                  *(c.player for c in self.clients.values())]):
            raise RuntimeError("a process of the scene has ended by an error of its own")
        if self.stop_words == "-":
            self.stop()
        deaths = len(self.watch.dead) - self.killed
        texts = {}
        for kind in ("connected", "anew"):
            texts[kind] = "-"
            if kind in self.clients:
                texts[kind] = (honest.in_words(self.calm_samples(kind)) + " → " +
                               honest.in_words(self.harm_samples(kind)))
        by_us = f" (and {self.killed} killed by the scene)" if self.killed else ""
        return {"connected": texts["connected"], "anew": texts["anew"],
                "deaths": f"{max(deaths, 0)}{by_us}", "stop": self.stop_words,
                "symptom": symptom}

    def close(self):
        if self.watch:
            self.watch.end()
        for client in self.clients.values():
            client.end()
        for player in self.players:
            player.end()
        # Zombies' children are the system's already; those end with the keeper.
        family = set(processes.descendants_of(self.daemon.pid))
        if self.watch:
            family |= self.watch.seen - self.watch.dead
        with contextlib.suppress(ProcessLookupError):
            self.daemon.kill()
        for pid in family:
            if (processes.program_of(pid) or "").startswith("kvhive"):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.daemon.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
