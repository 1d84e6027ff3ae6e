#!/usr/bin/env python3
"""Writes tiny random models in Hugging Face's layout, and their correct logits.

An implementation of the Llama family written apart from the C++ one: float64 throughout, no KV
cache, no batch, one sequence attending to itself under a mask. Only the weights are rounded, to the
dtype they are stored in. Needs Python 3 and numpy; deterministic. Run it in this folder:

    ./make_golden.py

Each model's folder gets config.json, its safetensors and golden.json: the prompt's tokens and a file
golden.f64 with the logits of every position, [tokens, vocab] little-endian float64.
"""

import json
import math
import os
import struct

import numpy as np

VOCAB = 96
TOKENS = 45
RMS_EPS = 1e-5


# ---- dtypes: (bits to store, the float64 values they stand for) ----

def to_f32(x):
    stored = x.astype(np.float32)
    return stored.tobytes(), stored.astype(np.float64)


def to_f16(x):
    stored = x.astype(np.float16)
    return stored.tobytes(), stored.astype(np.float64)


def to_bf16(x):
    bits = x.astype(np.float32).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return rounded.tobytes(), (rounded.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


DTYPES = {"float32": ("F32", to_f32), "float16": ("F16", to_f16), "bfloat16": ("BF16", to_bf16)}


# ---- files ----

def write_safetensors(path, tensors):
    """tensors: name -> (dtype name, shape, bytes)"""
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, _, data in tensors.values():
            file.write(data)


def write_json(path, value):
    with open(path, "w") as file:
        json.dump(value, file, indent=1)
        file.write("\n")


def write_weights(folder, tensors, shards):
    if shards == 1:
        return write_safetensors(os.path.join(folder, "model.safetensors"), tensors)
    names, weight_map = list(tensors), {}
    for shard in range(shards):
        file_name = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = {name: tensors[name] for name in names[shard::shards]}
        write_safetensors(os.path.join(folder, file_name), part)
        weight_map.update({name: file_name for name in part})
    write_json(os.path.join(folder, "model.safetensors.index.json"),
               {"metadata": {}, "weight_map": dict(sorted(weight_map.items()))})


# ---- random weights ----

def weight_shapes(c):
    """Hugging Face's names and shapes of a model's tensors."""
    h, inner, d = c["hidden_size"], c["intermediate_size"], head_dim(c)
    q, kv = c["num_attention_heads"] * d, c["num_key_value_heads"] * d
    shapes = {"model.embed_tokens.weight": (VOCAB, h)}
    for i in range(c["num_hidden_layers"]):
        a, m = f"model.layers.{i}.self_attn.", f"model.layers.{i}.mlp."
        shapes.update({f"model.layers.{i}.input_layernorm.weight": (h,),
                       f"model.layers.{i}.post_attention_layernorm.weight": (h,),
                       a + "q_proj.weight": (q, h), a + "k_proj.weight": (kv, h),
                       a + "v_proj.weight": (kv, h), a + "o_proj.weight": (h, q),
                       m + "gate_proj.weight": (inner, h), m + "up_proj.weight": (inner, h),
                       m + "down_proj.weight": (h, inner)})
        if c["architectures"] == ["Qwen2ForCausalLM"]:
            shapes.update({a + "q_proj.bias": (q,), a + "k_proj.bias": (kv,), a + "v_proj.bias": (kv,)})
        if c["architectures"] == ["Qwen3ForCausalLM"]:
            shapes.update({a + "q_norm.weight": (d,), a + "k_norm.weight": (d,)})
    shapes["model.norm.weight"] = (h,)
    if not c["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (VOCAB, h)
    return shapes


def random_weight(random, name, shape):
    if name.endswith("norm.weight"):
        return 1 + 0.2 * random.standard_normal(shape)
    if len(shape) == 1:
        return 0.5 * random.standard_normal(shape)
    gain = 1.0 if name == "model.embed_tokens.weight" else 1.5 / math.sqrt(shape[1])
    return gain * random.standard_normal(shape)


# ---- the model ----

def head_dim(c):
    return c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]


def rms_norm(x, weight):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + RMS_EPS) * weight


def rope_frequencies(c):
    d = head_dim(c)
    freq = c["rope_theta"] ** -(np.arange(0, d, 2) / d)
    scaling = c.get("rope_scaling")
    if not scaling:
        return freq
    if scaling["rope_type"] == "linear":
        return freq / scaling["factor"]
    context, low, high = (scaling[k] for k in ("original_max_position_embeddings", "low_freq_factor",
                                               "high_freq_factor"))
    turns = context * freq / (2 * math.pi)  # full turns within the original context
    blend = np.clip((turns - low) / (high - low), 0, 1)
    return blend * freq + (1 - blend) * freq / scaling["factor"]


def rotate(x, freq):
    """x: [tokens, heads, d]; dims (i, i + d/2) turn as a complex number."""
    half = x.shape[-1] // 2
    z = x[..., :half] + 1j * x[..., half:]
    z = z * np.exp(1j * np.arange(len(x))[:, None, None] * freq)
    return np.concatenate([z.real, z.imag], axis=-1)


def attention(c, w, prefix, x):
    n, d = len(x), head_dim(c)
    project = lambda part: (x @ w[f"{prefix}{part}_proj.weight"].T
                            + w.get(f"{prefix}{part}_proj.bias", 0)).reshape(n, -1, d)
    q, k, v = project("q"), project("k"), project("v")
    if prefix + "q_norm.weight" in w:
        q, k = rms_norm(q, w[prefix + "q_norm.weight"]), rms_norm(k, w[prefix + "k_norm.weight"])
    freq = rope_frequencies(c)
    q, k = rotate(q, freq), rotate(k, freq)
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scores = np.einsum("ihd,jhd->hij", q, k) / math.sqrt(d)
    i, j = np.arange(n)[:, None], np.arange(n)[None, :]
    window = c["sliding_window"] if c.get("use_sliding_window", "sliding_window" in c) else n
    scores = np.where((j <= i) & (i - j < window), scores, -np.inf)
    p = np.exp(scores - scores.max(axis=-1, keepdims=True))
    p /= p.sum(axis=-1, keepdims=True)
    return np.einsum("hij,jhd->ihd", p, v).reshape(n, -1) @ w[prefix + "o_proj.weight"].T


def forward(c, w, tokens):
    x = w["model.embed_tokens.weight"][tokens]
    for i in range(c["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        x = x + attention(c, w, layer + "self_attn.", rms_norm(x, w[layer + "input_layernorm.weight"]))
        y = rms_norm(x, w[layer + "post_attention_layernorm.weight"])
        gate, up = (y @ w[f"{layer}mlp.{part}_proj.weight"].T for part in ("gate", "up"))
        x = x + (gate / (1 + np.exp(-gate)) * up) @ w[layer + "mlp.down_proj.weight"].T
    head = w.get("lm_head.weight", w["model.embed_tokens.weight"])
    return rms_norm(x, w["model.norm.weight"]) @ head.T


# ---- the models ----

def config(architecture, dtype, **fields):
    return {"architectures": [architecture], "hidden_size": 32, "intermediate_size": 48,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
            "vocab_size": VOCAB, "rms_norm_eps": RMS_EPS, "rope_theta": 10000.0, "hidden_act": "silu",
            "max_position_embeddings": 128, "tie_word_embeddings": False, "torch_dtype": dtype,
            "bos_token_id": 1, "eos_token_id": 2, **fields}


LLAMA3_SCALING = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                  "original_max_position_embeddings": 32}
MODELS = {
    "llama2": (config("LlamaForCausalLM", "float32", num_key_value_heads=4, rope_scaling=None), 1),
    "llama3": (config("LlamaForCausalLM", "bfloat16", rope_theta=500.0, rope_scaling=LLAMA3_SCALING,
                      tie_word_embeddings=True, eos_token_id=[2, 3]), 1),
    "mistral": (config("MistralForCausalLM", "float16", sliding_window=11), 1),
    "qwen2": (config("Qwen2ForCausalLM", "float32", use_sliding_window=False, sliding_window=7,
                     rope_scaling={"rope_type": "linear", "factor": 2.0}), 3),
    "qwen3": (config("Qwen3ForCausalLM", "bfloat16", head_dim=16, rope_theta=1e6), 1),
}


def make(name, seed):
    c, shards = MODELS[name]
    random = np.random.default_rng(seed)
    dtype, store = DTYPES[c["torch_dtype"]]
    tensors, values = {}, {}
    for tensor, shape in weight_shapes(c).items():
        data, values[tensor] = store(random_weight(random, tensor, shape))
        tensors[tensor] = (dtype, shape, data)
    os.makedirs(name, exist_ok=True)
    write_json(os.path.join(name, "config.json"), c)
    write_weights(name, tensors, shards)
    tokens = random.integers(0, VOCAB, TOKENS)
    write_json(os.path.join(name, "golden.json"), {"tokens": tokens.tolist()})
    forward(c, values, tokens).astype("<f8").tofile(os.path.join(name, "golden.f64"))


if __name__ == "__main__":
    os.chdir(os.path.dirname(os.path.abspath(__file__)))
    for seed, name in enumerate(MODELS):
        make(name, seed)
