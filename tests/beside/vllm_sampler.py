#!/usr/bin/env python3
"""What vLLM's own sampler makes of logits, by random rules about tokens, beside what kvhive makes of them.

Batches of requests go through Sampler.apply_logits_processors() of the `vllm` package: allowed tokens, bad words, min_tokens, biases and
penalties, any of them together. kvhive's side is the test LogitsProcessor.DoesWhatVllmsSamplerDoes, which reads what this writes.

ROWS=20000 requests, SEED for other ones. RECORD=1 also writes some to tests/models/sampling/vllm_sampler.jsonl, for a test that needs no
vLLM.
"""
import json
import os
import random
import sys

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
VOCABULARY = 48

import torch  # noqa: E402
from recorded import compare  # noqa: E402
import vllm.utils.torch_utils  # noqa: E402

vllm.utils.torch_utils.PIN_MEMORY = False  # it needs a GPU
from vllm.sampling_params import SamplingParams  # noqa: E402
from vllm.v1.sample.logits_processor import LogitBiasLogitsProcessor, LogitsProcessors, MinTokensLogitsProcessor  # noqa: E402
from vllm.v1.sample.logits_processor.interface import BatchUpdate  # noqa: E402
from vllm.v1.sample.metadata import SamplingMetadata  # noqa: E402
from vllm.v1.sample.sampler import Sampler  # noqa: E402


def tokens(rng, most, least=0):
    return [rng.randrange(VOCABULARY) for _ in range(rng.randint(least, most))]


def request(rng):
    """One request's rules, tokens and logits. All numbers are exact in float32."""
    return {
        "logits": [rng.randint(-1000, 1000) / 64 for _ in range(VOCABULARY)],
        "prompt": tokens(rng, 30, 1),
        "answer": tokens(rng, 20),
        "presence_penalty": rng.choice([0, rng.randint(-16, 16) / 8]),
        "frequency_penalty": rng.choice([0, rng.randint(-16, 16) / 8]),
        "repetition_penalty": rng.choice([1, rng.randint(4, 24) / 8]),
        "min_tokens": rng.choice([0, rng.randint(1, 25)]),
        "end_tokens": sorted(set(tokens(rng, 3, 1))),
        "logit_bias": {token: rng.randint(-800, 800) / 8 for token in tokens(rng, 4)} if rng.random() < 0.5 else {},
        "allowed_token_ids": tokens(rng, 30, 1) if rng.random() < 0.3 else [],
        "bad_words": [tokens(rng, 2, 1) for _ in range(rng.randint(1, 4))] if rng.random() < 0.5 else [],
    }


def processed(batch):
    device = torch.device("cpu")
    params = []
    for each in batch:
        made = SamplingParams(max_tokens=100, min_tokens=each["min_tokens"], logit_bias=each["logit_bias"] or None)
        made._all_stop_token_ids = set(each["end_tokens"])
        params.append(made)
    processors = [kind(None, device, False) for kind in (MinTokensLogitsProcessor, LogitBiasLogitsProcessor)]
    added = [(i, made, each["prompt"], each["answer"]) for i, (made, each) in enumerate(zip(params, batch))]
    for processor in processors:
        processor.update_state(BatchUpdate(batch_size=len(batch), removed=[], added=added, moved=[]))
    longest = max(len(each["prompt"]) for each in batch)
    mask = torch.zeros((len(batch), VOCABULARY), dtype=torch.bool)
    for row, each in enumerate(batch):
        if each["allowed_token_ids"]:
            mask[row] = True
            mask[row, each["allowed_token_ids"]] = False
    column = lambda name: torch.tensor([each[name] for each in batch], dtype=torch.float32)
    metadata = SamplingMetadata(
        temperature=None, all_greedy=True, all_random=False, top_p=None, top_k=None, generators={}, max_num_logprobs=None, no_penalties=False,
        prompt_token_ids=torch.tensor([each["prompt"] + [VOCABULARY] * (longest - len(each["prompt"])) for each in batch]),
        frequency_penalties=column("frequency_penalty"), presence_penalties=column("presence_penalty"),
        repetition_penalties=column("repetition_penalty"), output_token_ids=[each["answer"] for each in batch],
        allowed_token_ids_mask=mask if mask.any() else None,
        bad_words_token_ids={i: each["bad_words"] for i, each in enumerate(batch) if each["bad_words"]}, logitsprocs=LogitsProcessors(processors))
    logits = torch.tensor([each["logits"] for each in batch], dtype=torch.float32)
    return Sampler().apply_logits_processors(logits, metadata, predict_bonus_token=False)


def lines(rng, rows):
    while rows > 0:
        batch = [request(rng) for _ in range(min(rows, rng.randint(1, 8)))]
        rows -= len(batch)
        for each, row in zip(batch, processed(batch).tolist()):
            # JSON has no infinity.
            yield json.dumps(each | {"processed": [None if logit == float("-inf") else round(logit, 6) for logit in row]}) + "\n"


def main():
    rows = int(os.environ.get("ROWS") or 20000)
    code = compare(lines, rows, "tests/models/sampling/vllm_sampler.jsonl", 150, "kvhive_models_test",
                   "LogitsProcessor.DoesWhatVllmsSamplerDoes", "KVHIVE_VLLM_SAMPLER")
    print(f"rules about tokens: {rows} rows, {'all as vLLM has them' if code == 0 else 'NOT as vLLM has them'}")
    sys.exit(code)


main()
