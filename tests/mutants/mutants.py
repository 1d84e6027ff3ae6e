#!/usr/bin/env python3
"""Builds each seeded mistake of the tables beside this file and shows that the test named there catches it (README.md).

mutants.py BUILD_FOLDER [WORDS]   only mutants with one of WORDS in their name
mutants.py --check                only whether every mistake still fits the sources

KVHIVE_MUTANTS_SAMPLE=n of the environment: only n of them, drawn from KVHIVE_SEED (any).
The build folder is left as it is. A mutant's objects are compiled with the commands of the real build (ninja knows them),
and linked before the real libraries.
"""
import concurrent.futures
import os
import pathlib
import random
import re
import signal
import shutil
import subprocess
import sys
import time
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]
SECONDS = 120  # a test that has not ended by then hangs: that is caught, too
FIELDS = {"name", "harm", "file", "was", "now", "program", "filter"}


class Broken(Exception):
    """The table and the sources do not fit together."""


def programs_of(mutant):
    """The program with the mistake and the test program: the same one, unless the test starts the other."""
    return {mutant.get("mutated", mutant["program"]), mutant["program"]}


def read_tables(words):
    mutants = []
    for table in sorted(ROOT.glob("tests/mutants/*.toml")):
        for mutant in tomllib.loads(table.read_text())["mutant"]:
            if missing := FIELDS - mutant.keys():
                raise SystemExit(f"{table.name}: mutant '{mutant.get('name')}' lacks {', '.join(sorted(missing))}")
            mutants.append(mutant)
    return [m for m in mutants if not words or any(word in m["name"] for word in words)]


def that_run_here(mutants):
    """Those whose instructions this machine's CPU has; says which are left out."""
    flags = set(re.search(r"^flags\s*:(.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.MULTILINE)[1].split())
    for mutant in mutants:
        if (needed := mutant.get("needs")) and needed not in flags:
            print(f"NOT RUN   {mutant['name']}: this CPU has no {needed}", flush=True)
        else:
            yield mutant


def sample(mutants):
    """Some of the mutants, if the environment wants only some."""
    size = int(os.environ.get("KVHIVE_MUTANTS_SAMPLE") or len(mutants))
    if size >= len(mutants):
        return mutants
    seed = os.environ.get("KVHIVE_SEED") or str(random.randrange(2**32))
    print(f"{size} of {len(mutants)} mutants, drawn from seed {seed}", flush=True)
    return random.Random(seed).sample(mutants, size)


class Build:
    """What ninja knows about the build folder."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder).resolve()
        self.commands_of = {}
        self.readers_of = {}  # path from ROOT -> objects that include it
        output = None
        for line in self.ninja("-t", "deps").splitlines():
            if not line.startswith(" "):
                output = line.split(":")[0]
                continue
            path = pathlib.Path(os.path.normpath(self.folder / line.strip()))
            if path.is_relative_to(ROOT):
                self.readers_of.setdefault(str(path.relative_to(ROOT)), set()).add(output)

    def ninja(self, *arguments):
        return subprocess.run(["ninja", "-C", self.folder, *arguments], check=True, capture_output=True, text=True).stdout

    def prepare(self, program):
        if program in self.commands_of:
            return
        compile_commands, link = {}, None
        for line in self.ninja("-t", "commands", f"bin/{program}").splitlines():
            if found := re.search(r" -o (\S+\.o) -c (\S+)$", line):
                compile_commands[found[1]] = line
            elif f" -o bin/{program} " in line:
                link = line.removeprefix(": && ").split(" && ")[0]
        self.commands_of[program] = compile_commands, link


def source_of(command):
    return command.rsplit(" -c ", 1)[1]


def parts_of(source):
    """The sources that are compiled as this one (kvhive_unite in cmake/quick_build.cmake); else itself."""
    if "/Unity/unity_" not in source:
        return [source]
    return re.findall(r'^#include "(.*)"$', pathlib.Path(source).read_text(), re.MULTILINE)


def suites_of(test_filter):
    """Names of the test suites in a filter: "Pool/Race.Ends/X:A.B" -> Race, A."""
    return {re.split(r"[./]", part.split("/", 1)[-1] if "/" in part.split(".")[0] else part)[0]
            for part in test_filter.split(":")}


def affected_objects(build, mutant):
    """Objects of the program that read the mutant's file. Of the tests' own, only those with the tests that are run."""
    compile_commands, _ = build.commands_of[mutant.get("mutated", mutant["program"])]
    for made in sorted(build.readers_of.get(mutant["file"], set()) & compile_commands.keys()):
        sources = [build.folder / source for source in parts_of(source_of(compile_commands[made]))]
        if only := mutant.get("compile"):
            if any(str(source).endswith(name) for source in sources for name in only):
                yield made
        elif any(ROOT / "tests" not in source.resolve().parents
                 or any(re.search(rf"\b{suite}\b", source.read_text()) for suite in suites_of(mutant["filter"]))
                 for source in sources):
            yield made


def run(command, build, log):
    with open(log, "a") as out:
        return subprocess.run(command, shell=True, cwd=build.folder, stdout=out, stderr=out,
                              stdin=subprocess.DEVNULL).returncode


def original_of(mutant):
    original = (ROOT / mutant["file"]).read_text()
    if original.count(mutant["was"]) != 1:
        raise Broken(f"`was` occurs {original.count(mutant['was'])} times in {mutant['file']}, not once")
    return original


def make(build, mutant, folder):
    """Links the program with the mistake. Returns the test program to run."""
    original = original_of(mutant)
    shutil.rmtree(folder, ignore_errors=True)
    overlay = folder / "source"
    mutated = overlay / mutant["file"]
    mutated.parent.mkdir(parents=True)
    mutated.write_text(original.replace(mutant["was"], mutant["now"]))

    name_of_program = mutant.get("mutated", mutant["program"])
    compile_commands, link = build.commands_of[name_of_program]
    made = {}
    for number, name in enumerate(affected_objects(build, mutant)):
        command, source = compile_commands[name], source_of(compile_commands[name])
        made[name] = folder / f"{number}.o"
        parts = [mutated if part == str(ROOT / mutant["file"]) else part for part in parts_of(source)]
        mutated_source = parts[0]
        if len(parts) > 1:
            mutated_source = folder / f"{number}.cpp"
            mutated_source.write_text("".join(f'#include "{part}"\n' for part in parts))
        command = re.sub(r" -MD -MT \S+ -MF \S+", "", command).replace(f" -o {name} -c {source}", "")
        command = command.replace(" -I", f" -I{overlay} -I", 1)
        if run(f"{command} -o {made[name]} -c {mutated_source}", build, folder / "log") != 0:
            raise Broken(f"does not compile; see {folder / 'log'}")
    if not made:
        raise Broken(f"{name_of_program} does not contain {mutant['file']}")

    program = folder / name_of_program
    parts = link.replace(f" -o bin/{name_of_program} ", f" -o {program} ", 1).split(" ")
    parts = [str(made.get(part, part)) for part in parts]
    of_libraries = [str(path) for name, path in made.items() if str(path) not in parts]
    place = max(i for i, part in enumerate(parts) if part.endswith(".o"))
    parts[place:place] = of_libraries  # before the libraries: the linker then does not take theirs
    if run(" ".join(parts), build, folder / "log") != 0:
        raise Broken(f"does not link; see {folder / 'log'}")
    if name_of_program == mutant["program"]:
        return program
    for other in {"kvhive", "kvhived", "kvhive-engine", "kvhive-steward"} - {name_of_program}:
        # A hard link: a daemon looks for its engine where its own file is, and would follow a symbolic one.
        (folder / other).hardlink_to(build.folder / mutant.get("others", "bin") / other)
    return build.folder / "bin" / mutant["program"]


def run_tests(build, program, test_filter, environment=None, seconds=SECONDS):
    """Returns (number of tests run, what went wrong or nothing)."""
    test = subprocess.Popen([program, f"--gtest_filter={test_filter}"], cwd=build.folder, text=True, errors="replace", start_new_session=True,
                            env=os.environ | {"GOMP_SPINCOUNT": "0", "KVHIVE_PATIENCE": "20"} | (environment or {}), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        output, _ = test.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(test.pid, signal.SIGKILL)  # also the daemons that it started
        test.wait()
        return 1, f"a test that does not end within {seconds} s"
    started = re.findall(r"^\[ RUN      \] (\S+)", output, re.M)
    failed = re.findall(r"^\[  FAILED  \] ([^\s,]+)[^\n]*\(\d+ ms\)", output, re.M)
    if failed:
        return len(started), failed[0]
    if test.returncode != 0:
        return len(started), f"{started[-1] if started else 'the program'}, which ended with code {test.returncode}"
    return len(started), None


def examine(build, mutant):
    """Returns (whether it was caught, a line about it)."""
    start = time.monotonic()
    folder = build.folder / "mutants" / re.sub(r"\W+", "-", mutant["name"])
    try:
        program = make(build, mutant, folder)
        environment = mutant.get("environment", {})
        if "mutated" in mutant:
            environment = environment | {"KVHIVE_PROGRAMS_UNDER_TEST": str(folder)}
        _, culprit = run_tests(build, program, mutant["filter"], environment,
                               mutant.get("seconds", SECONDS))
    except Broken as error:
        return False, f"BROKEN    {mutant['name']}: {error}"
    seconds = time.monotonic() - start
    if culprit is None:
        return False, f"SURVIVED  {mutant['name']}: {mutant['filter']} ({seconds:.0f} s)"
    return True, f"caught    {mutant['name']}: by {culprit} ({seconds:.0f} s)"


def check_tables(mutants):
    """Every mistake must fit the sources, also those that are not tried today."""
    fine = True
    for mutant in mutants:
        try:
            original_of(mutant)
        except Broken as error:
            print(f"BROKEN    {mutant['name']}: {error}")
            fine = False
    return fine


def check_originals(build, mutants):
    """The tests must pass without the mistakes."""
    fine = True
    for program, test_filter in sorted({(m["program"], m["filter"]) for m in mutants}):
        count, culprit = run_tests(build, build.folder / "bin" / program, test_filter)
        if count == 0 or culprit is not None:
            print(f"BROKEN    {program} {test_filter}: {'no such test' if count == 0 else 'fails without a mistake'}")
            fine = False
    return fine


def main():
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    if sys.argv[1] == "--programs":
        print(" ".join(sorted({name for m in read_tables([]) for name in programs_of(m)})))
        return
    if sys.argv[1] == "--check":
        raise SystemExit(0 if check_tables(read_tables([])) else 1)
    mutants = read_tables(sys.argv[2:])
    tables_fit = check_tables(mutants)
    mutants = sample(list(that_run_here(mutants)))
    build = Build(sys.argv[1])
    for mutant in mutants:
        for name in programs_of(mutant):
            build.prepare(name)
    all_caught = check_originals(build, mutants) and tables_fit
    caught = 0
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for was_caught, line in pool.map(lambda m: examine(build, m), mutants):
            print(line, flush=True)
            caught += was_caught
    print(f"{caught} of {len(mutants)} mutants caught")
    raise SystemExit(0 if all_caught and caught == len(mutants) else 1)


main()
