#!/usr/bin/env python3
"""kvhive's transformer beside llama.cpp: one random bf16 Llama in both formats, the same threads, by turns; prints ratios (make bench-llama).

LLAMA_CPP=FOLDER  llama.cpp's sources; otherwise those in the source package of llama-cpp-python, from PyPI
THREADS=N         of both (default: as many as there are cores to run on, so `taskset -c 1 make bench-llama` measures one thread)
ROUNDS=N          3
CASES="tg pp512"  only cases that have one of these in their names, "memory" among them
BRIEF=1           a model of a few MiB, to see that it runs

llama.cpp runs each case with the faster of its two ways of attention (flash or not), as a short trial of both says. With one thread
the time is the process' processor time, so that others on the machine do not count; with more it is wall time.
"""
import math
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tarfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import model  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[3]
WORK = ROOT / "build/llama"
PACKAGE = "llama-cpp-python==0.3.36"
THREADS = int(os.environ.get("THREADS") or len(os.sched_getaffinity(0)))
ROUNDS = int(os.environ.get("ROUNDS") or 3)
CASES = (os.environ.get("CASES") or "").split()
BRIEF = bool(os.environ.get("BRIEF"))
SIZES = model.Sizes(2, 256, 4, 2, 64, 512, 512) if BRIEF else model.Sizes()
DEPTH, PROMPTS, STEPS = (256, (64, 256), 8) if BRIEF else (4096, (512, 2048), 64)
ROOM = DEPTH  # tokens of KV that each process has in the comparison of memory


class Case:
    """`command` is measured, `trial` decides which way llama.cpp takes; both compute tokens, at `tokens` of them."""

    def __init__(self, name, command, tokens, trial, goal=None):
        self.name, self.command, self.tokens, self.trial, self.goal = name, command, tokens, trial, goal


def cases():
    yield Case("tg at depth 0", f"decode 1 0 {STEPS}", STEPS, "decode 1 0 8", 1.5)
    yield Case(f"tg at depth {DEPTH}", f"decode 1 {DEPTH} {STEPS}", STEPS, f"decode 1 {DEPTH} 8", 2)
    for prompt, goal in zip(PROMPTS, (5, None)):
        yield Case(f"pp{prompt}", f"prompt {prompt} {prompt}", prompt, f"prompt {PROMPTS[0]} {prompt}", goal)
    for count, goal in ((8, None), (16, 2)):
        yield Case(f"tg of batch {count}, depth 128", f"decode {count} 128 {STEPS // 2}", count * STEPS // 2, f"decode {count} 128 4", goal)


def wanted(name):
    return not CASES or any(part in name for part in CASES)


def give_up(text):
    raise SystemExit(f"bench-llama: {text}")


def run_logged(command, what):
    """Its output goes to a file, which is named if it fails."""
    log = WORK / (what.split()[0] + ".log")
    with open(log, "w") as file:
        if subprocess.run(command, stdout=file, stderr=subprocess.STDOUT).returncode != 0:
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-5:])
            give_up(f"{what} failed; {log.relative_to(ROOT)} ends with\n{tail}")


def sources():
    """A folder with llama.cpp's sources."""
    given = os.environ.get("LLAMA_CPP")
    if given:
        folder = pathlib.Path(given).resolve()
        if not (folder / "include/llama.h").is_file():
            give_up(f"LLAMA_CPP={given} is no source folder of llama.cpp (it has no include/llama.h)")
        return folder
    folder = WORK / PACKAGE.replace("==", "-") / "llama.cpp"
    if (folder / "include/llama.h").is_file():
        return folder
    download = WORK / "download"
    shutil.rmtree(download, ignore_errors=True)
    name = PACKAGE.split("=")[0]
    pip = subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-binary", name,
                          "--dest", download, PACKAGE], capture_output=True, text=True)
    packages = list(download.glob("*.tar.gz"))
    if pip.returncode != 0 or not packages:
        why = (pip.stderr.strip().splitlines() or ["it says nothing"])[-1]
        give_up(f"llama.cpp is neither given nor to be had: pip cannot download {PACKAGE} ({why}).\n"
                "LLAMA_CPP=FOLDER make bench-llama takes a source folder of llama.cpp that you have.")
    with tarfile.open(packages[0]) as package:
        for member in package:
            inside = member.name.partition("/vendor/llama.cpp/")[2]
            if inside and member.isfile():
                to = folder.parent / "unpacked" / inside
                to.parent.mkdir(parents=True, exist_ok=True)
                to.write_bytes(package.extractfile(member).read())
    shutil.rmtree(download)
    (folder.parent / "unpacked").rename(folder)
    return folder


def build(source):
    folder = WORK / "build"
    cache = folder / "CMakeCache.txt"
    if cache.is_file() and f"LLAMA_CPP:UNINITIALIZED={source}\n" not in cache.read_text():
        shutil.rmtree(folder)
    print(f"building llama.cpp of {source.relative_to(ROOT) if source.is_relative_to(ROOT) else source}", flush=True)
    run_logged(["cmake", "-G", "Ninja", "-S", pathlib.Path(__file__).parent, "-B", folder, f"-DLLAMA_CPP={source}"], "configure llama.cpp")
    run_logged(["cmake", "--build", folder, "-j", os.environ.get("JOBS") or str(os.cpu_count())], "build llama.cpp")
    return folder / "bin/llama_side"


class Side:
    """A process that answers commands."""

    def __init__(self, command):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env={**os.environ, "OMP_NUM_THREADS": str(THREADS)})
        self.command = command

    def ask(self, line):
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass
        answer = self.process.stdout.readline().strip()
        if not answer:
            give_up(f"{self.command[0]} ended with {self.process.wait()} at: {line}")
        return answer

    def seconds(self, line):
        wall, processor = map(float, self.ask(line).split())
        return processor if THREADS == 1 else wall

    def proportional_bytes(self):
        """Its memory; pages that several processes have count in parts."""
        for line in pathlib.Path(f"/proc/{self.process.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def check_same_model(ours, theirs):
    """Both must compute the same function of the same numbers, or the comparison means nothing."""
    tokens = [(31 * i * i + 7) % SIZES.vocab for i in range(1, 17)]
    for way, side in theirs.items():
        one, other = ([float(logit) for logit in each.ask("logits " + " ".join(map(str, tokens))).split()] for each in (ours, side))
        rms = math.sqrt(sum(logit * logit for logit in other) / len(other))
        off = max(abs(a - b) for a, b in zip(one, other)) if len(one) == len(other) else math.inf
        print(f"logits behind 16 tokens, {way}: of rms {rms:.3f} they differ by at most {off:.3f}; the likeliest token is "
              f"{one.index(max(one))} and {other.index(max(other))}", flush=True)
        if not off < 0.1 * rms:
            give_up("the two do not compute the same model")


def measure(ours, theirs):
    print(f"\n{'tokens/s, medians of ' + str(ROUNDS) + ' rounds':32} {'kvhive':>8} {'llama.cpp':>10} {'ratio':>6} {'of rounds':>14}  goal")
    for case in cases():
        if not wanted(case.name):
            continue
        for side in (ours, *theirs.values()):
            side.seconds(case.trial)
        way = min(theirs, key=lambda way: theirs[way].seconds(case.trial))
        pairs = [(case.tokens / ours.seconds(case.command), case.tokens / theirs[way].seconds(case.command)) for _ in range(ROUNDS)]
        ratios = [one / other for one, other in pairs]
        print(f"{case.name:32} {statistics.median(one for one, _ in pairs):8.1f} {statistics.median(other for _, other in pairs):10.1f} "
              f"{statistics.median(ratios):6.2f} {f'{min(ratios):.2f} to {max(ratios):.2f}':>14}  {case.goal or '':4} {way}", flush=True)


def measure_memory(commands):
    """Each process has KV for as many tokens and has computed a prompt and a step."""
    print(f"\n{f'MiB; each with KV of {ROOM} tokens':32} {'kvhive':>8} {'llama.cpp':>10} {'ratio':>6}")
    for count in (1, 4):
        used = []
        for command in commands:
            sides = [Side(command) for _ in range(count)]
            for side in sides:
                side.seconds(f"prompt {PROMPTS[0]} {ROOM}")
            used.append(sum(side.proportional_bytes() for side in sides) / 2**20)
            for side in sides:
                side.end()
        print(f"{f'{count} processes' if count > 1 else '1 process':32} {used[0]:8.0f} {used[1]:10.0f} {used[0] / used[1]:6.2f}", flush=True)


def main():
    WORK.mkdir(parents=True, exist_ok=True)
    program = build(sources())
    directory, gguf = model.write_both(WORK / ("model-brief" if BRIEF else "model"), SIZES)
    cpu = next((line.partition(": ")[2] for line in open("/proc/cpuinfo") if line.startswith("model name")), "unknown processor")
    print(f"{cpu}, {THREADS} of {os.cpu_count()} cores; {SIZES.parameters() / 1e6:.0f} M parameters, bf16")
    ours_command = [ROOT / "build/bin/kvhive_llama_side", directory]
    commands = {way: [program, gguf, str(THREADS), way] for way in ("flash", "plain")}
    ours, theirs = Side(ours_command), {way: Side(command) for way, command in commands.items()}
    print(f"kvhive: {ours.ask('about')}\nllama.cpp: {theirs['flash'].ask('about')}")
    check_same_model(ours, theirs)
    measure(ours, theirs)
    for side in (ours, *theirs.values()):
        side.end()
    if wanted("memory"):
        measure_memory([ours_command, commands["flash"]])


if __name__ == "__main__":
    main()
