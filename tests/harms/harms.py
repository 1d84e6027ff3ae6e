#!/usr/bin/env python3
"""Plays the harm of each line S1 to S12 against the programs of one build, and measures what an
honest client notices. See README.md.

    harms.py BIN [S1 S4 ...]"""

import os
import signal
import sys
import time
import traceback

import library
import scenes_of_connections
import scenes_of_machines
import scenes_of_requests
from stage import Build

SCENES = sorted(
    scenes_of_connections.SCENES + scenes_of_requests.SCENES + scenes_of_machines.SCENES,
    key=lambda scene: (int(scene.line[1:]), scene.order))
NOT_MEASURED = "**not measured**"
SCENE_LIMIT = 100  # seconds, with the start of the daemon and the calm time


class TooLong(Exception):
    pass


def out_of_time(*_):
    raise TooLong(f"the scene took more than {SCENE_LIMIT} s")


def play(scene, build):
    signal.signal(signal.SIGALRM, out_of_time)
    signal.alarm(SCENE_LIMIT)
    try:
        return scene.play(build)
    except Exception as why:
        traceback.print_exc()
        return {"symptom": f"{NOT_MEASURED}: {why}"}
    finally:
        signal.alarm(0)


COLUMNS = ["line", "what was done", "first token, p50 / p99 in ms: calm → during it",
           "the same, connecting anew each time", "engines that died", "SIGTERM to end, s",
           "what the line is about"]


def cells(scene, row):
    return [scene.line, scene.done, row.get("connected", "-"), row.get("anew", "-"),
            row.get("deaths", "-"), row.get("stop", "-"), row["symptom"]]


def main():
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    build = Build(sys.argv[1])
    wanted = [word.upper() for word in sys.argv[2:]]
    unknown = set(wanted) - {scene.line for scene in SCENES}
    if unknown:
        raise SystemExit(f"no scene plays {', '.join(sorted(unknown))}; LINES may name S1 to S12")
    if os.geteuid() != 0:
        raise SystemExit("scenes need root: attackers are other users, and one needs a cgroup")
    library.load(build.library)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended
    table = [COLUMNS, ["---"] * len(COLUMNS)]
    for scene in SCENES:
        if wanted and scene.line not in wanted:
            continue
        begin = time.monotonic()
        print(f"{scene.line}: {scene.done} ...", flush=True)
        row = play(scene, build)
        table.append(cells(scene, row))
        print(f"    {time.monotonic() - begin:.0f} s; " + " | ".join(table[-1][2:]), flush=True)
    print()
    for line in table:
        print("| " + " | ".join(line) + " |")
    lacking = sum(line[-1].startswith(NOT_MEASURED) for line in table)
    if lacking:
        raise SystemExit(f"{lacking} scenes were not measured; their errors stand above")


if __name__ == "__main__":
    main()
