#!/usr/bin/env python3
"""vLLM's own n-gram proposer beside kvhive's guesses.

TEXTS=20000 random texts go through NgramProposer of the `vllm` package; kvhive's side is the test PromptLookup.GuessesWhatVllmsProposerGuesses,
which reads what this writes. Half of the texts have few different tokens, the others repeat pieces of themselves.

SEED for other ones. RECORD=1 also writes some to tests/actors/speculation/vllm_ngrams.jsonl, for a test that needs no vLLM.
"""
import json
import os
import sys
from types import SimpleNamespace

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
MOST_TOKENS = 400

import numpy  # noqa: E402
from recorded import compare  # noqa: E402
from vllm.v1.spec_decode.ngram_proposer import NgramProposer  # noqa: E402


def proposer(longest, shortest, drafts):
    speculative = SimpleNamespace(prompt_lookup_min=shortest, prompt_lookup_max=longest, num_speculative_tokens=drafts)
    return NgramProposer(SimpleNamespace(speculative_config=speculative, model_config=SimpleNamespace(max_model_len=MOST_TOKENS),
                                         scheduler_config=SimpleNamespace(max_num_seqs=1024), parallel_config=SimpleNamespace(tensor_parallel_size=1)))


def random_text(rng):
    if rng.random() < 0.5:
        return [rng.randrange(rng.randint(2, 8)) for _ in range(rng.randint(1, 60))]
    pieces = [[rng.randrange(1000) for _ in range(rng.randint(1, 12))] for _ in range(rng.randint(1, 6))]
    return [token for _ in range(rng.randint(1, 30)) for token in rng.choice(pieces)][:MOST_TOKENS - 1]


def lines(rng, texts):
    for _ in range(max(1, texts // 500)):
        longest = rng.randint(1, 8)
        shortest, drafts = rng.randint(1, longest), rng.randint(1, 8)
        vllm = proposer(longest, shortest, drafts)
        batch = [random_text(rng) for _ in range(min(texts, 500))]
        table = numpy.zeros((len(batch), MOST_TOKENS), dtype=numpy.int32)
        for row, text in zip(table, batch):
            row[:len(text)] = text
        guesses = vllm.propose(drafts, [[0]] * len(batch), numpy.array([len(text) for text in batch], dtype=numpy.int32), table)
        for text, guess in zip(batch, guesses):
            most = min(drafts, MOST_TOKENS - len(text))
            yield json.dumps({"longest": longest, "shortest": shortest, "most": most, "text": text, "guess": guess}, separators=(",", ":")) + "\n"


texts = int(os.environ.get("TEXTS") or 20000)
failed = compare(lines, texts, "tests/actors/speculation/vllm_ngrams.jsonl", 150, "kvhive_actors_test", "PromptLookup.GuessesWhatVllmsProposerGuesses",
                 "KVHIVE_VLLM_NGRAMS")
print(f"{'FAILED' if failed else 'ok    '} {texts} texts: guesses beside those of vLLM's n-gram proposer")
sys.exit(failed)
