#!/usr/bin/env python3
"""vLLM's own scheduler and KV-cache manager beside ours, decision for decision, over random streams of requests.

Both get the same stream, step by step: requests that come and are aborted, guesses at their tokens. Neither has a model: the token that
follows is a function of the request and the position (next_token). After each step both say what they would compute: which requests, from
where, how many tokens, in which blocks, and whom they have preempted. Ours is said by build/bin/kvhive_decisions (decisions.hpp).

REQUESTS=100000 for a long run, SEED for one stream. RECORD=1 also writes some streams with a digest of vLLM's decision at each step
(tests/actors/vllm.jsonl), for a test that needs no vLLM.
"""
import collections
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
ROOT = pathlib.Path(__file__).resolve().parents[2]
VOCABULARY = 1000


def next_token(request, position):
    return (request * 131 + position * 17 + 7) % VOCABULARY


def guesses_at(request, position, most):
    """Guesses at the tokens from `position` on: some of them wrong, sometimes none."""
    count = max(0, min((request * 7 + position * 5) % 6, most))
    return [next_token(request, i + (1 if (request + i * 3) % 5 == 0 else 0)) for i in range(position, position + count)]


def family_token(family, position):
    return (family * 7919 + position * 31 + position // 50) % VOCABULARY


def tokens_of(prompt):
    """A prompt is pieces [family, from, count]; a negative family is what a request has generated."""
    return [family_token(f, p) if f >= 0 else next_token(-f, p) for f, start, count in prompt for p in range(start, start + count)]


# -- streams --------------------------------------------------------------------------------------

KINDS = {
    "full": [["full"]],
    "window": [["window", 40]],
    "full and window": [["full"], ["window", 40]],
    "full and two windows": [["full"], ["window", 24], ["window", 24]],
    "full and chunks": [["full"], ["chunks", 64]],
}


def most_blocks(config):
    """What vLLM demands for one request of max_model_len."""
    size, length, step = config["block_size"], config["max_model_len"], config["max_num_batched_tokens"]
    held = {"full": lambda: length, "window": lambda span: min(span - 1 + step, length) + size, "chunks": lambda span: min(span + step, length)}
    return sum(-(-held[kind](*span) // size) for kind, *span in config["groups"])


def random_stream(seed, requests):
    """The configuration, and for each step what comes."""
    rng = random.Random(seed)
    kind = list(KINDS)[seed % len(KINDS)]
    block = rng.choice([4, 8, 16])
    budget = rng.choice([32, 64, 200, 512])
    config = {
        "seed": seed, "kind": kind, "groups": KINDS[kind], "block_size": block, "blocks": rng.choice([80, 110, 160, 400]),
        "max_num_seqs": rng.choice([2, 4, 16]), "max_num_batched_tokens": budget,
        "max_model_len": 200 * block // 8 + 100, "policy": rng.choice(["fcfs", "fcfs", "priority"]),
        "watermark": rng.choice([0.0, 0.0, 0.05]), "long_prefill_token_threshold": rng.choice([0, 0, 16, 40]),
    }
    if rng.random() < 0.4:
        config["guesses"] = rng.choice([1, 3, 5])
    windows = any(kind == "window" for kind, *_ in config["groups"])
    config["retention"] = rng.choice([0, 0, None, 2 * block, 5 * block] if windows else [0, None])
    while most_blocks(config) >= config["blocks"]:  # vLLM would not start
        config["max_model_len"] -= 1
    longest = config["max_model_len"] - 45
    adapters = rng.choice([[], ["poet"], ["poet", "clerk", "a"]])
    steps, alive, past, number = [], [], [], 0
    rate = rng.choice([0.1, 0.3, 0.8])
    while number < requests:
        step = {}
        while number < requests and rng.random() < rate:
            number += 1
            past_one = rng.choice(past) if past and rng.random() < 0.4 else None
            if past_one:  # the next turn of a conversation, or the same again
                prompt = list(past_one["prompt"])
                if rng.random() < 0.7:
                    start = sum(count for _, _, count in prompt)
                    prompt += [[-past_one["id"], start, rng.randrange(1, past_one["max_tokens"] + 1)], [rng.randrange(3, 500), 0, rng.randrange(1, 30)]]
            else:
                prompt = [[rng.randrange(3), 0, rng.randrange(1, 80)]]
                if rng.random() < 0.8:
                    prompt.append([rng.randrange(3, 500), 0, rng.randrange(1, 120)])
            if sum(count for _, _, count in prompt) > longest:
                prompt = [[rng.randrange(3), 0, rng.randrange(1, longest)]]
            request = {"id": number, "prompt": prompt, "max_tokens": rng.randrange(1, 40)}
            if config["policy"] == "priority":
                request["priority"] = rng.randrange(3)
            if rng.random() < 0.1:
                request["salt"] = rng.choice("ab")
            if adapters and rng.random() < 0.5:
                request["adapter"] = rng.choice(adapters)
            if rng.random() < 0.1:
                request["prompt_logprobs"] = 1
            step.setdefault("add", []).append(request)
            alive.append(number)
            past = (past + [request])[-12:]
        if alive and rng.random() < 0.02:
            step["abort"] = [alive.pop(rng.randrange(len(alive)))]
        steps.append(step)
    return config, steps


# -- vLLM -----------------------------------------------------------------------------------------

def vllm_scheduler(config):
    import torch
    from vllm.config import CacheConfig, DeviceConfig, ModelConfig, ParallelConfig, SchedulerConfig, SpeculativeConfig, VllmConfig
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import (ChunkedLocalAttentionSpec, FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec)
    from vllm.v1.structured_output import StructuredOutputManager

    model = ModelConfig(model=str(ROOT / "models/demo"), tokenizer=str(ROOT / "models/demo"), skip_tokenizer_init=True, dtype="float32", seed=0,
                        max_model_len=config["max_model_len"])
    scheduling = SchedulerConfig(
        max_num_seqs=config["max_num_seqs"], max_num_batched_tokens=config["max_num_batched_tokens"], max_model_len=config["max_model_len"],
        long_prefill_token_threshold=config["long_prefill_token_threshold"], enable_chunked_prefill=True, is_encoder_decoder=False,
        policy=config["policy"], watermark=config["watermark"], async_scheduling=False)
    cache = CacheConfig(block_size=config["block_size"], gpu_memory_utilization=0.9, cache_dtype="auto", enable_prefix_caching=True)
    guessing = {}
    if config.get("guesses"):
        guessing["speculative_config"] = SpeculativeConfig(target_model_config=model, target_parallel_config=ParallelConfig(), method="ngram",
                                                           num_speculative_tokens=config["guesses"], prompt_lookup_max=2)
    vllm_config = VllmConfig(**guessing, scheduler_config=scheduling, model_config=model, cache_config=cache, device_config=DeviceConfig(device="cpu"))
    shape = {"block_size": config["block_size"], "num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}

    def spec(kind, span=0):
        if kind == "full":
            return FullAttentionSpec(**shape)
        return SlidingWindowSpec(**shape, sliding_window=span) if kind == "window" else ChunkedLocalAttentionSpec(**shape, attention_chunk_size=span)

    groups = [KVCacheGroupSpec([f"layer{i}"], spec(*group)) for i, group in enumerate(config["groups"])]
    kv = KVCacheConfig(num_blocks=config["blocks"], kv_cache_tensors=[], kv_cache_groups=groups, prefix_cache_retention_interval=config["retention"])
    cache.num_gpu_blocks = config["blocks"]
    scheduler = Scheduler(vllm_config=vllm_config, kv_cache_config=kv, structured_output_manager=StructuredOutputManager(vllm_config),
                     block_size=config["block_size"], hash_block_size=config["block_size"], log_stats=False)
    # Where the number of guesses may change, vLLM does not fill up the first step of requests whose whole prompt is cached (which it does
    # for its CUDA graphs). The guesses themselves are given at each step.
    scheduler.dynamic_sd_lookup = collections.defaultdict(lambda: config.get("guesses", 0))
    return scheduler


class CachesWhatNobodyComputes(Exception):
    """vLLM's cache has a block whose tokens were never computed (docs/VLLM.md)."""


def vllm_decisions(config, steps):
    """Yields for each step what vLLM decides, until nothing is left."""
    from vllm.lora.request import LoRARequest
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
    from vllm.v1.request import Request, RequestStatus

    init_none_hash(sha256)
    hasher = get_request_block_hasher(config["block_size"], sha256)
    scheduler = vllm_scheduler(config)
    preempt, uncomputed = scheduler._preempt_request, []

    def watched_preempt(request, *rest, **more):
        # With priorities, a request that this step has already scheduled may be preempted. vLLM has registered its blocks by then, and
        # they stay in the cache though nobody computes them: from here on the two must differ.
        for manager in scheduler.kv_cache_manager.coordinator.single_type_managers:
            if manager.num_cached_block.get(request.request_id, 0) * config["block_size"] > request.num_computed_tokens:
                uncomputed.append(request.request_id)
        return preempt(request, *rest, **more)

    scheduler._preempt_request = watched_preempt
    came = 0
    for step in [*steps, *[{}] * 100000]:
        for each in step.get("abort", []):
            if scheduler.has_request(str(each)):
                scheduler.finish_requests(str(each), RequestStatus.FINISHED_ABORTED)
        for each in step.get("add", []):
            came += 1
            params = SamplingParams(max_tokens=each["max_tokens"], ignore_eos=True, prompt_logprobs=each.get("prompt_logprobs"))
            params.update_from_generation_config({}, None)
            adapter = each.get("adapter")
            lora = adapter and LoRARequest(adapter, 1 + "poet clerk a".split().index(adapter), "/nowhere")
            scheduler.add_request(Request(str(each["id"]), tokens_of(each["prompt"]), params, None, arrival_time=float(came),
                                          cache_salt=each.get("salt"), lora_request=lora, priority=each.get("priority", 0), block_hasher=hasher))
        if not step and came == sum(len(s.get("add", [])) for s in steps) and not scheduler.has_unfinished_requests():
            return
        output = scheduler.schedule()
        if uncomputed:
            raise CachesWhatNobodyComputes
        starts = {r.req_id: r.num_computed_tokens for r in output.scheduled_new_reqs}
        starts |= dict(zip(output.scheduled_cached_reqs.req_ids, output.scheduled_cached_reqs.num_computed_tokens))
        work = []
        for name, count in output.num_scheduled_tokens.items():
            tables = scheduler.kv_cache_manager.get_block_ids(name)
            blocks = -(-(starts[name] + count) // config["block_size"])
            work.append([int(name), starts[name], count, [list(table[:blocks]) for table in tables]])
        order = {int(r.request_id): i for i, r in enumerate(scheduler.running)}
        work.sort(key=lambda each: order[each[0]])
        yield {"work": work, "preempted": [int(name) for name in sorted(output.preempted_req_ids or [], key=int)]}
        names = list(output.num_scheduled_tokens)
        sampled, guesses = [], []
        for name in names:
            request = scheduler.requests[name]
            tokens = []
            if request.num_computed_tokens >= request.num_tokens:
                tokens.append(next_token(int(name), request.num_tokens))
                for guess in output.scheduled_spec_decode_tokens.get(name, []):
                    if guess != tokens[-1]:
                        break
                    tokens.append(next_token(int(name), request.num_tokens + len(tokens)))
            sampled.append(tokens)
            length = request.num_tokens + len(tokens)
            left = min(config["max_model_len"], request.num_prompt_tokens + request.max_tokens) - length
            guesses.append(guesses_at(int(name), length, min(config.get("guesses", 0), left - 1)) if tokens else [])
        scheduler.update_from_output(output, ModelRunnerOutput(req_ids=names, req_id_to_index={n: i for i, n in enumerate(names)},
                                                               sampled_token_ids=sampled, logprobs=None, prompt_logprobs_dict={}, pooler_output=[]))
        if config.get("guesses"):
            scheduler.update_draft_token_ids(DraftTokenIds(names, guesses))


# -- both -----------------------------------------------------------------------------------------

def our_decisions(config, steps):
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as stream:
        for line in [config, *steps]:
            stream.write(json.dumps(line) + "\n")
        stream.flush()
        told = subprocess.run([ROOT / "build/bin/kvhive_decisions", stream.name], check=True, capture_output=True, text=True).stdout
    return [json.loads(line) for line in told.splitlines()]


def first_difference(config, steps):
    """Nothing, or the step and what both say. Adds to `seen` what the equal steps have shown."""
    ours = iter(our_decisions(config, steps))
    running = set()
    try:
        for number, theirs in enumerate(vllm_decisions(config, steps)):
            mine = next(ours, None)
            if mine != theirs:
                return number, theirs, mine
            seen["steps"] += 1
            seen["scheduled"] += len(theirs["work"])
            seen["preempted"] += len(theirs["preempted"])
            for name, start, count, tables in theirs["work"]:
                if name not in running:
                    seen["admitted"] += 1
                    seen["hit tokens"] += start
            running |= {name for name, *_ in theirs["work"]}
            running -= set(theirs["preempted"])
        if next(ours, None) is not None:
            return "after the end", None, "more"
    except CachesWhatNobodyComputes:
        seen["streams left where vLLM caches what nobody computes"] += 1
    return None


seen = dict.fromkeys(["steps", "scheduled", "admitted", "hit tokens", "preempted", "streams left where vLLM caches what nobody computes"], 0)


def digest(decision):
    """FNV-1a of the decision's shortest JSON."""
    number = 0xcbf29ce484222325
    for byte in json.dumps(decision, sort_keys=True, separators=(",", ":")).encode():
        number = (number ^ byte) * 0x100000001b3 % 2**64
    return f"{number:016x}"


def record(streams, requests):
    with open(ROOT / "tests/actors/vllm.jsonl", "w") as file:
        for seed in range(1, streams + 1):
            config, steps = random_stream(seed, requests)
            lines = []
            try:
                for number, decision in enumerate(vllm_decisions(config, steps)):
                    lines.append((steps[number] if number < len(steps) else {}) | {"told": digest(decision)})
            except CachesWhatNobodyComputes:
                continue
            for line in [config, *lines]:
                file.write(json.dumps(line, separators=(",", ":")) + "\n")


def main():
    requests, seed = int(os.environ.get("REQUESTS", "3000")), os.environ.get("SEED")
    each, done, failed = 100, 0, 0
    for number in [int(seed)] if seed else range(1, requests // each + 1):
        config, steps = random_stream(number, each)
        found = first_difference(config, steps)
        done += each
        if found:
            failed += 1
            step, theirs, mine = found
            print(f"seed {number}: {json.dumps(config)}\n  step {step}: {json.dumps(steps[step]) if step < len(steps) else ''}\n  vLLM {json.dumps(theirs)}\n  ours {json.dumps(mine)}", flush=True)
    import vllm
    print(f"vLLM {vllm.__version__}: {done} requests in {done // each} streams, {failed} streams differ; " + ", ".join(f"{n} {what}" for what, n in seen.items()))
    if os.environ.get("RECORD"):
        record(20, 40)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
