#!/usr/bin/env python3
"""The work of first_engine_run.sh: engine_run.py OUT BIN MODEL.

KVHIVE_PARTS: only these of "share answers kills maker wide families"; KVHIVE_GPU_FLAGS: more options of the daemon
("--gpu-memory-sharing ipc"); KVHIVE_PROMPT: characters of the long prompts (4000);
KVHIVE_KILLS: engines killed while they swap (200), KVHIVE_TOKENS: of each sequence then (384), KVHIVE_SEED: when (1);
KVHIVE_LAYERS: of the wide model (16); 0: none; set at all: a brief bench.
"""
import json
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import traceback

import wide_model

out, bin_dir, model = map(pathlib.Path, sys.argv[1:4])
kills = int(os.environ.get("KVHIVE_KILLS", "200"))
kill_tokens = int(os.environ.get("KVHIVE_TOKENS", "384"))
long_prompt = int(os.environ.get("KVHIVE_PROMPT", "4000"))
parts = os.environ.get("KVHIVE_PARTS", "share answers kills maker wide families").split()
more_flags = os.environ.get("KVHIVE_GPU_FLAGS", "").split()
brief = ["--brief"] if "KVHIVE_LAYERS" in os.environ else []
passage = (pathlib.Path(__file__).parents[2] / "models/demo/passage.txt").read_text()
results, wrong = {}, []


class Daemon:
    """A kvhived that lives as long as the with-block."""

    def __init__(self, name, *flags, model=model):
        self.directory = tempfile.TemporaryDirectory()
        self.socket = f"{self.directory.name}/s"
        self.log = open(out / f"{name}.log", "w")
        self.process = subprocess.Popen(
            [bin_dir / "kvhived", "--model", model, "--socket", self.socket, *flags],
            stdout=subprocess.PIPE, stderr=self.log, text=True)
        started = time.monotonic()
        if "ready" not in self.process.stdout.readline():
            raise RuntimeError(f"kvhived did not start: {(out / name).with_suffix('.log').read_text()[-800:]}")
        results[f"seconds to ready, {name}"] = round(time.monotonic() - started, 2)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        if code != 0:
            wrong.append(f"kvhived ended with {code}")
        self.directory.cleanup()

    def kvhive(self, *arguments):
        return subprocess.run([bin_dir / "kvhive", *arguments, "--socket", self.socket, "--format", "json"],
                              capture_output=True, text=True, timeout=60)

    def generate(self, prompt, tokens, engine, *more):
        answer = self.kvhive("generate", "--prompt", prompt, "--max-tokens", str(tokens), "--ignore-eos",
                             "--engine", str(engine), *more)
        if answer.returncode != 0:
            wrong.append(f"generate on engine {engine}: {answer.stderr.strip()}")
            return None
        return json.loads(answer.stdout)

    def pid_of(self, engine):
        processes = json.loads(self.kvhive("pool", "procs").stdout)["processes"]
        return next((p["pid"] for p in processes if p.get("engine") == engine), None)

    def restart_of(self, engine, old):
        for _ in range(6000):
            if self.pid_of(engine) not in (None, old):
                return True
            time.sleep(0.01)
        wrong.append(f"engine {engine} was not started again")
        return False

    def check(self, when):
        if self.kvhive("pool", "fsck").returncode != 0:
            wrong.append(f"fsck {when}")


def free_gpu_memory():
    doctor = subprocess.run([bin_dir / "kvhive", "doctor", "--format", "json"], capture_output=True, text=True, timeout=60)
    try:
        found = json.loads(doctor.stdout)
    except ValueError:
        return doctor.stderr.strip() or "unknown"
    (out / "doctor.json").write_text(json.dumps(found, indent=2))
    return next((f["value"] for f in found if f["topic"] == "GPU memory"), "unknown")


prompts = [passage[i * 400:i * 400 + 300] for i in range(8)]
gpu_flags = ["--device", "cuda", "--engines", "2", "--max-model-len", "2048", *more_flags]


def share():
    """Tokens beside the CPU's, hits in another engine's blocks, an arena that outlives all engines."""
    with Daemon("cpu", "--device", "cpu", "--kv-cache-memory-bytes", "64M") as cpu:
        expected = [cpu.generate(p, 32, 0)["token_ids"] for p in prompts]

    with Daemon("gpu", *gpu_flags, "--kv-cache-memory-bytes", "64M") as gpu:
        first = gpu.generate("Once upon a time", 8, 0)
        results["first answer of an engine, ttft ms"] = first["ttft_ms"] if first else None
        same, tokens = 0, 0
        for prompt, theirs in zip(prompts, expected):
            ours = gpu.generate(prompt, 32, 0)
            if ours:
                equal = next((i for i, (a, b) in enumerate(zip(ours["token_ids"], theirs)) if a != b), 32)
                same, tokens = same + equal, tokens + 32
        results["tokens equal to the CPU's"] = f"{same} of {tokens}"  # counted up to the first difference in each prompt

        times = {"computed": [], "hit, other engine": [], "hit, same engine": []}
        for i in range(9):
            prompt = f"{i} " + passage[:long_prompt]
            for name, engine in (("computed", 0), ("hit, other engine", 1), ("hit, same engine", 0)):
                answer = gpu.generate(prompt, 2, engine)
                if not answer:
                    continue
                times[name].append(answer["ttft_ms"])
                if name != "computed" and answer["cached_tokens"] == 0:
                    wrong.append(f"no {name}")
        results["ttft ms"] = {name: statistics.median(values) for name, values in times.items() if values}

        both = [gpu.pid_of(0), gpu.pid_of(1)]
        for pid in both:
            os.kill(pid, signal.SIGKILL)
        killed = time.monotonic()
        for engine, pid in enumerate(both):
            gpu.restart_of(engine, pid)
        results["seconds until both engines were back"] = round(time.monotonic() - killed, 2)
        answer = gpu.generate("0 " + passage[:long_prompt], 2, 0)
        results["cached after all engines died"] = answer["cached_tokens"] if answer else None
        if not answer or answer["cached_tokens"] == 0:
            wrong.append("the arena did not outlive its engines")
        gpu.check("after all engines died")


RULES = ["--presence-penalty", "0.5", "--frequency-penalty", "0.5", "--repetition-penalty", "1.2", "--min-tokens", "4",
         "--logit-bias", "300=1.5"]


def answers():
    """Rules about tokens, guesses ahead and scores of prompts, beside the CPU."""
    text = passage[:240]
    repeating = text + text
    with Daemon("answers-cpu", "--device", "cpu", "--kv-cache-memory-bytes", "64M") as cpu:
        ruled = [cpu.generate(p, 32, 0, *RULES)["token_ids"] for p in prompts]
        scores = cpu.generate(text, 1, 0, "--prompt-logprobs", "1")["prompt_logprobs"]
    flags = [*gpu_flags, "--kv-cache-memory-bytes", "64M", "--batch-invariant"]
    with Daemon("answers-gpu", *flags) as gpu:
        same = 0
        for prompt, theirs in zip(prompts, ruled):
            ours = gpu.generate(prompt, 32, 0, *RULES)["token_ids"]
            same += next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), 32)
        results["tokens with rules equal to the CPU's"] = f"{same} of {32 * len(prompts)}"
        ours = gpu.generate(text, 1, 0, "--prompt-logprobs", "1")["prompt_logprobs"]
        apart = [abs(a["logprob"] - b["logprob"]) for a, b in zip(ours[1:], scores[1:])]
        results["a prompt's logprobs, furthest from the CPU's"] = round(max(apart), 4)
        if len(apart) < 20 or max(apart) > 0.3:
            wrong.append("the prompt's logprobs")
        plain = gpu.generate(repeating, 96, 0)["token_ids"]
    with Daemon("answers-guesses", *flags, "--num-speculative-tokens", "4") as gpu:
        guessed = gpu.generate(repeating, 96, 0)["token_ids"]
        stat = json.loads(gpu.kvhive("pool", "stat").stdout)
        results["guesses"] = {"drafts": stat.get("draft_tokens"), "accepted": stat.get("accepted_tokens")}
        if guessed != plain:
            wrong.append("guesses ahead change the tokens")


def kill_engines():
    """Small pool, large host tier: sequences swap all the time. A block damaged by a dead engine's copies would give wrong tokens.

    Batch-invariant: otherwise another batch could resolve a tie differently, and a correct token would count as wrong.
    """
    swap_flags = ["--kv-cache-memory-bytes", "2M", "--swap-space", "64M", "--preemption-mode", "swap", "--max-model-len", "512",
                  "--batch-invariant", *more_flags]
    random.seed(int(os.environ.get("KVHIVE_SEED", "1")))
    with Daemon("kills", "--device", "cuda", "--engines", "2", *swap_flags) as gpu:
        reference = [gpu.generate(p, kill_tokens, 1) for p in prompts]
        killed = differing = 0
        for _ in range(kills):
            victim = gpu.pid_of(0)
            running = [subprocess.Popen([bin_dir / "kvhive", "generate", "--prompt", p, "--max-tokens", str(kill_tokens), "--ignore-eos",
                                         "--engine", "0", "--socket", gpu.socket, "--format", "json"],
                                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) for p in prompts]
            time.sleep(random.random() * 0.3)
            try:
                os.kill(victim, signal.SIGKILL)
                killed += 1
            except (ProcessLookupError, TypeError):
                pass
            for process, before in zip(running, reference):
                answer = process.communicate(timeout=60)[0]
                if not answer or not before or json.loads(answer)["token_ids"] != before["token_ids"]:
                    differing += 1
            gpu.restart_of(0, victim)
            results["killed while swapping"] = {"engines": killed, "streams that differ": differing}
        stat = json.loads(gpu.kvhive("pool", "stat").stdout)
        results["preempted"] = {name: stat.get(f"preemptions_{name}") for name in ("swap", "recompute")}
        if kills and not stat.get("preemptions_swap"):
            wrong.append("nothing was swapped")
        gpu.log.flush()
        results["swaps"] = next((line.split("swaps in ", 1)[1].strip() for line in open(gpu.log.name) if "swaps in " in line), None)
        if differing:
            wrong.append(f"{differing} streams differ after kills")
        gpu.check("after the kills")


def maker_of(socket):
    """The process that makes the GPU's memory for the daemon on this socket."""
    for line in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = line.read_bytes()
        except OSError:  # it has ended
            continue
        if b"--make-gpu-memory" in words and socket.encode() in words:
            return int(line.parent.name)
    raise RuntimeError("no process makes the GPU's memory")


def kill_maker():
    """With legacy IPC the memory lives as long as the process that made it. If that is killed, the daemon ends and frees all."""
    before = free_gpu_memory()
    flags = ["--device", "cuda", "--engines", "2", "--max-model-len", "2048", "--gpu-memory-sharing", "ipc"]
    gpu = Daemon("maker", *flags, "--kv-cache-memory-bytes", "1G")
    gpu.generate(prompts[0], 8, 0)
    during = free_gpu_memory()
    os.kill(maker_of(gpu.socket), signal.SIGKILL)
    try:
        code = gpu.process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        gpu.process.kill()
        code = "it went on for 20 s"
    gpu.directory.cleanup()
    last = pathlib.Path(gpu.log.name).read_text().strip().splitlines()[-1]
    results["maker of the memory killed"] = {"exit code": code, "last line": last, "memory": [before, during, free_gpu_memory()]}
    if code == 0 or not isinstance(code, int):
        wrong.append("the daemon did not end with its memory's maker")


def measure_wide_model():
    """A billion parameters: tokens per second, compared with one read of the weights per step at the bandwidth that first_run.sh
    measured."""
    bench = bin_dir / "bench_generate"
    if not bench.exists() or wide_model.LAYERS == 0:
        return
    yardsticks = out / "yardsticks.json"
    read_gb_s = json.loads(yardsticks.read_text())["read_gb_s"] if yardsticks.exists() else None
    with tempfile.TemporaryDirectory() as folder:
        wide = pathlib.Path(folder)
        weights = wide_model.write_model(wide, model)
        for name, flags in (("graphs", []), ("eager", ["--enforce-eager"]), ("batch-invariant", ["--batch-invariant"])):
            with Daemon(f"throughput-{name}", *gpu_flags, *flags, model=wide) as gpu:
                run = subprocess.run([bench, *brief], capture_output=True, text=True, timeout=120,
                                     env={**os.environ, "KVHIVE_SOCKET": gpu.socket})
            lines = (run.stdout or run.stderr).strip().splitlines()
            results[f"bench_generate, {name}"] = lines
            if read_gb_s and len(lines) > 2:
                bound = read_gb_s * 1e9 / weights  # steps per second
                one_sequence = float(lines[2].split()[1])  # first row of the table
                results[f"one sequence of the bound, {name}"] = round(one_sequence / bound, 3)


def measure_families():
    """Experts and latent attention, in layers as wide as real models'."""
    bench = bin_dir / "bench_generate"
    for kind in ("qwen3_moe", "deepseek_v2"):
        with tempfile.TemporaryDirectory() as folder:
            wide = pathlib.Path(folder)
            results[f"bytes of {kind}"] = wide_model.write_model(wide, model, kind)
            with Daemon(f"throughput-{kind}", *gpu_flags, model=wide) as gpu:
                run = subprocess.run([bench, *brief], capture_output=True, text=True, timeout=120,
                                     env={**os.environ, "KVHIVE_SOCKET": gpu.socket})
            results[f"bench_generate, {kind}"] = (run.stdout or run.stderr).strip().splitlines()


def save():
    results["wrong"] = wrong
    (out / "engine_run.json").write_text(json.dumps(results, indent=2))


results["gpu memory before"] = free_gpu_memory()
for name, part in (("share", share), ("answers", answers), ("kills", kill_engines), ("maker", kill_maker),
                   ("wide", measure_wide_model), ("families", measure_families)):
    if name not in parts:
        continue
    try:
        part()
    except Exception as error:  # the other parts run all the same
        traceback.print_exc()
        wrong.append(f"{name}: {error!r}")
    save()
results["gpu memory after"] = free_gpu_memory()
save()
for name, value in results.items():
    print(f"{name:32} {json.dumps(value)}")
sys.exit(bool(wrong))
