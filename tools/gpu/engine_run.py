#!/usr/bin/env python3
"""The work of first_engine_run.sh: engine_run.py OUT BIN MODEL.

KVHIVE_KILLS: engines killed while they swap (200); KVHIVE_PROMPT: characters of the long prompts (4000);
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

import wide_model

out, bin_dir, model = map(pathlib.Path, sys.argv[1:4])
kills = int(os.environ.get("KVHIVE_KILLS", "200"))
long_prompt = int(os.environ.get("KVHIVE_PROMPT", "4000"))
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
        if "ready" not in self.process.stdout.readline():
            sys.exit(f"kvhived did not start, see {out / name}.log")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()
        self.directory.cleanup()

    def kvhive(self, *arguments):
        return subprocess.run([bin_dir / "kvhive", *arguments, "--socket", self.socket, "--format", "json"],
                              capture_output=True, text=True)

    def generate(self, prompt, tokens, engine):
        answer = self.kvhive("generate", "--prompt", prompt, "--max-tokens", str(tokens), "--ignore-eos",
                             "--engine", str(engine))
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
    found = [f for f in json.loads(subprocess.run([bin_dir / "kvhive", "doctor", "--format", "json"],
                                                  capture_output=True, text=True).stdout)]
    (out / "doctor.json").write_text(json.dumps(found, indent=2))
    return next((f["value"] for f in found if f["topic"] == "GPU memory"), "unknown")


results["gpu memory before"] = free_gpu_memory()
prompts = [passage[i * 400:i * 400 + 300] for i in range(8)]
with Daemon("cpu", "--device", "cpu", "--kv-cache-memory-bytes", "64M") as cpu:
    expected = [cpu.generate(p, 32, 0)["token_ids"] for p in prompts]

gpu_flags = ["--device", "cuda", "--engines", "2", "--max-model-len", "2048"]
with Daemon("gpu", *gpu_flags, "--kv-cache-memory-bytes", "64M") as gpu:
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
    for engine, pid in enumerate(both):
        gpu.restart_of(engine, pid)
    answer = gpu.generate("0 " + passage[:long_prompt], 2, 0)
    results["cached after all engines died"] = answer["cached_tokens"] if answer else None
    if not answer or answer["cached_tokens"] == 0:
        wrong.append("the arena did not outlive its engines")
    gpu.check("after all engines died")

# Small pool, large host tier: sequences swap all the time. A block damaged by a dead engine's copies would give wrong tokens.
# Batch-invariant: otherwise another batch could resolve a tie differently, and a correct token would count as wrong.
swap_flags = ["--kv-cache-memory-bytes", "8M", "--swap-space", "64M", "--preemption-mode", "swap", "--max-model-len", "512",
              "--batch-invariant"]
random.seed(1)
with Daemon("kills", "--device", "cuda", "--engines", "2", *swap_flags) as gpu:
    reference = [gpu.generate(p, 64, 1) for p in prompts]
    killed = differing = 0
    for _ in range(kills):
        victim = gpu.pid_of(0)
        running = [subprocess.Popen([bin_dir / "kvhive", "generate", "--prompt", p, "--max-tokens", "64", "--ignore-eos",
                                     "--engine", "0", "--socket", gpu.socket, "--format", "json"],
                                    stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) for p in prompts]
        time.sleep(random.random() * 0.3)
        try:
            os.kill(victim, signal.SIGKILL)
            killed += 1
        except (ProcessLookupError, TypeError):
            pass
        for process, before in zip(running, reference):
            answer = process.communicate()[0]
            if not answer or not before or json.loads(answer)["token_ids"] != before["token_ids"]:
                differing += 1
        gpu.restart_of(0, victim)
    results["killed while swapping"] = {"engines": killed, "streams that differ": differing}
    gpu.log.flush()
    results["swaps"] = next((line.split("swaps in ", 1)[1].strip() for line in open(gpu.log.name) if "swaps in " in line), None)
    if differing:
        wrong.append(f"{differing} streams differ after kills")
    gpu.check("after the kills")

# A billion parameters: tokens per second, compared with one read of the weights per step at the bandwidth that first_run.sh
# measured.
bench = bin_dir / "bench_generate"
if bench.exists() and wide_model.LAYERS > 0:
    yardsticks = out / "yardsticks.json"
    read_gb_s = json.loads(yardsticks.read_text())["read_gb_s"] if yardsticks.exists() else None
    with tempfile.TemporaryDirectory() as folder:
        wide = pathlib.Path(folder)
        weights = wide_model.write_model(wide, model)
        for name, flags in (("graphs", []), ("eager", ["--enforce-eager"]), ("batch-invariant", ["--batch-invariant"])):
            with Daemon(f"throughput-{name}", *gpu_flags, *flags, model=wide) as gpu:
                run = subprocess.run([bench, *brief], capture_output=True, text=True,
                                     env={**os.environ, "KVHIVE_SOCKET": gpu.socket})
            lines = (run.stdout or run.stderr).strip().splitlines()
            results[f"bench_generate, {name}"] = lines
            if read_gb_s and len(lines) > 2:
                bound = read_gb_s * 1e9 / weights  # steps per second
                one_sequence = float(lines[2].split()[1])  # first row of the table
                results[f"one sequence of the bound, {name}"] = round(one_sequence / bound, 3)
results["gpu memory after"] = free_gpu_memory()
results["wrong"] = wrong
(out / "engine_run.json").write_text(json.dumps(results, indent=2))
for name, value in results.items():
    print(f"{name:32} {json.dumps(value)}")
sys.exit(bool(wrong))
