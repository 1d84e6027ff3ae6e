#!/usr/bin/env python3
"""What random conversations find in the cache, by how many blocks of sliding windows are kept (--prefix-cache-retention-interval).

Our scheduler and block manager alone (build/bin/kvhive_decisions): one of three system prompts of 300 tokens, questions of 20 to 149,
answers of 5 to 59; twelve conversations go on at a time, in any order. Prints the table of docs/POLICIES.md.
"""
import random

from vllm_scheduler import our_decisions

WINDOW, BLOCK = 64, 16
GROUPS = {
    "a window": [["window", WINDOW]],
    "full, a window": [["full"], ["window", WINDOW]],
    "full, five windows": [["full"]] + [["window", WINDOW]] * 5,
}
INTERVALS = {"0": 0, "128": 128, "dense": None}


def conversations(requests, longest):
    """For each step the requests that come."""
    rng = random.Random(1)
    talks, number = [], 0
    while number < requests:
        if rng.random() < 0.5:
            yield {}
            continue
        question = [rng.randrange(1000, 10**6), 0, rng.randrange(20, 150)]
        if talks and rng.random() < 0.7:
            talk = rng.choice(talks)
            talk["prompt"] += [[-talk["id"], talk["tokens"], talk["answer"]], question]
            talk["tokens"] += talk["answer"] + question[2]
        else:
            talk = {"prompt": [[rng.randrange(3), 0, 300], question], "tokens": 300 + question[2]}
            talks = (talks + [talk])[-12:]
        if talk["tokens"] > longest:
            talks.remove(talk)
            continue
        number += 1
        talk.update(id=number, answer=rng.randrange(5, 60))
        yield {"add": [{"id": number, "prompt": list(talk["prompt"]), "max_tokens": talk["answer"]}]}


def found(groups, blocks, interval, steps):
    """Tokens that admissions need not compute."""
    config = {"groups": groups, "block_size": BLOCK, "blocks": blocks, "max_num_seqs": 16, "max_num_batched_tokens": 512, "max_model_len": 2048,
              "policy": "fcfs", "watermark": 0.0, "long_prefill_token_threshold": 0, "retention": interval}
    hits, running = 0, set()
    for decision in our_decisions(config, steps):
        hits += sum(start for name, start, *_ in decision["work"] if name not in running)
        running |= {name for name, *_ in decision["work"]}
        running -= set(decision["preempted"])
    return hits


def main():
    steps = list(conversations(1500, 1900))
    tokens = sum(count for step in steps for each in step.get("add", []) for _, _, count in each["prompt"])
    print("| groups | blocks | " + " | ".join(INTERVALS) + " |\n|---|---|" + "---|" * len(INTERVALS))
    for name, groups in GROUPS.items():
        for blocks in (600, 1500, 4000):
            shares = [100 * found(groups, blocks, interval, steps) / tokens for interval in INTERVALS.values()]
            print(f"| {name} | {blocks:,} | " + " | ".join(f"{share:.1f}" for share in shares) + " |", flush=True)


if __name__ == "__main__":
    main()
