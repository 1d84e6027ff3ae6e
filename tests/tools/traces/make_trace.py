#!/usr/bin/env python3
"""Makes small.jsonl: invented traffic of a few tenants whose prompts grow turn by turn, in the format of Mooncake's
traces (64 tokens per content id, the last one may be partial). Fixed seed; expect.json holds what vLLM's block manager
decides on it, computed with an independent model of one exact pool."""
import json
import random

random.seed(1009)
next_id = 0


def fresh(count):
    global next_id
    next_id += count
    return list(range(next_id - count, next_id))


systems = [fresh(random.randint(2, 9)) for _ in range(6)]
sessions, lines = [], []
for _ in range(600):
    if not sessions or random.random() < 0.25:
        sessions.append(list(random.choice(systems)))
    session = random.choice(sessions[-12:])
    session += fresh(random.randint(0, 4))
    tail = random.choice([0, 0, 1, 17, 63])
    ids = session + (fresh(1) if tail else [])
    lines.append({"timestamp": 0, "input_length": len(session) * 64 + tail, "output_length": random.randint(1, 300), "hash_ids": ids})
with open("small.jsonl", "w") as file:
    file.writelines(json.dumps(line) + "\n" for line in lines)
