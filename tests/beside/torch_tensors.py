#!/usr/bin/env python3
"""What torch.save() writes beside our reader of it (tools/serve/tensor/): tensors of all forms that are taken, with their
values, and of some that are refused.

TENSORS=500 random ones, SEED for other ones. RECORD=1 also writes some to tests/serve/torch_tensors.jsonl, for a test that
needs no torch.
"""
import base64
import io
import json
import os
import random
import sys

import torch

from recorded import compare

TYPES = [torch.float32, torch.float16, torch.bfloat16]


def saved(thing, **options):
    file = io.BytesIO()
    torch.save(thing, file, **options)
    return base64.b64encode(file.getvalue()).decode()


def taken(name, tensor):
    rows = tensor.detach().float().reshape(-1, tensor.shape[-1])
    return {"name": name, "file": saved(tensor), "rows": rows.tolist()}


def refused(name, thing, says, **options):
    return {"name": name, "file": saved(thing, **options), "says": says}


def values(rng, rows, width, dtype):
    return torch.tensor([[rng.gauss(0, 2) for _ in range(width)] for _ in range(rows)]).to(dtype)


def fixed(rng):
    """One of each form."""
    plain = values(rng, 3, 4, torch.float32)
    for dtype in TYPES:
        yield taken(str(dtype), values(rng, 3, 4, dtype))
    yield taken("transposed", plain.t())
    yield taken("a slice of rows", values(rng, 300, 4, torch.float16)[290:295])
    yield taken("a slice of columns", plain[:, 1:3])
    yield taken("every other column", plain[:, ::2])
    yield taken("a batch of one", plain[None])
    yield taken("a parameter", torch.nn.Parameter(plain.clone()))
    yield taken("with a gradient", plain.clone().requires_grad_())
    yield taken("one value", plain[:1, :1].clone())
    yield taken("subnormal, largest, zeros", torch.tensor([[6e-8, -65504.0], [0.0, -0.0]]).half())
    yield refused("sparse", plain.to_sparse(), "_rebuild_sparse_tensor")
    yield refused("int64", plain.long(), "torch.LongStorage")
    yield refused("float64", plain.double(), "torch.DoubleStorage")
    yield refused("float8", plain.to(torch.float8_e4m3fn), "_rebuild_tensor_v3")
    yield refused("a dictionary", {"prompt_embeds": plain}, "other than one tensor")
    yield refused("a list", [plain, plain], "other than one tensor")
    yield refused("a module", torch.nn.Linear(2, 2), "torch.nn.modules.linear.Linear")
    yield refused("a row", plain[0].clone(), "the shape [4]")
    yield refused("a batch of two", torch.stack([plain, plain]), "the shape [2, 3, 4]")
    yield refused("a number", plain.sum(), "the shape []")
    yield refused("no rows", plain[:0].clone(), "it is empty")
    yield refused("expanded", plain[:1].expand(1000, 4), "it was expanded")
    yield refused("a conjugate view", torch.view_as_complex(values(rng, 3, 2, torch.float32)).conj().imag[:, None], "other than one")
    yield refused("protocol 4", plain, "protocol 4", pickle_protocol=4)
    yield refused("the old format", plain, "no archive", _use_new_zipfile_serialization=False)


def views(rng, tensor):
    """The tensor, or a part of it, in another order."""
    if rng.random() < 0.3:
        tensor = tensor.t()
    rows, width = tensor.shape
    first, left = rng.randrange(rows), rng.randrange(width)
    tensor = tensor[first:rng.randrange(first, rows) + 1:rng.choice([1, 1, 2]), left::rng.choice([1, 1, 3])]
    return tensor[None] if rng.random() < 0.2 else tensor


def lines(rng, count):
    for case in fixed(rng):
        yield json.dumps(case) + "\n"
    for i in range(count):
        tensor = values(rng, rng.randrange(1, 9), rng.randrange(1, 9), rng.choice(TYPES))
        yield json.dumps(taken(f"random {i}", views(rng, tensor))) + "\n"


if __name__ == "__main__":
    count = int(os.environ.get("TENSORS") or 500)
    code = compare(lines, count, "tests/serve/torch_tensors.jsonl", 4, "kvhive_serve_test", "TorchTensor.IsReadAsTorchHasSavedIt",
                   "KVHIVE_TORCH_TENSORS")
    print(f"{count} random tensors saved by torch {torch.__version__}: {'equal' if code == 0 else 'NOT equal'}", flush=True)
    sys.exit(code)
