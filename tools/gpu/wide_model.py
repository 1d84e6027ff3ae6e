"""Writes an untrained model of a billion parameters. The cost of decode does not depend on the tokens.

The demo model's tokenizer, Llama's shape, weights of one pattern in bf16. KVHIVE_LAYERS: how many layers.
"""
import json
import os
import shutil
import struct

LAYERS = int(os.environ.get("KVHIVE_LAYERS", "16"))
HIDDEN, INNER, HEADS, KV_HEADS, HEAD_SIZE, VOCAB = 2048, 8192, 32, 8, 64, 2048


def tensors():
    yield "model.embed_tokens.weight", [VOCAB, HIDDEN]
    yield "model.norm.weight", [HIDDEN]
    for layer in range(LAYERS):
        name = f"model.layers.{layer}."
        yield name + "input_layernorm.weight", [HIDDEN]
        yield name + "post_attention_layernorm.weight", [HIDDEN]
        yield name + "self_attn.q_proj.weight", [HEADS * HEAD_SIZE, HIDDEN]
        yield name + "self_attn.k_proj.weight", [KV_HEADS * HEAD_SIZE, HIDDEN]
        yield name + "self_attn.v_proj.weight", [KV_HEADS * HEAD_SIZE, HIDDEN]
        yield name + "self_attn.o_proj.weight", [HIDDEN, HEADS * HEAD_SIZE]
        yield name + "mlp.gate_proj.weight", [INNER, HIDDEN]
        yield name + "mlp.up_proj.weight", [INNER, HIDDEN]
        yield name + "mlp.down_proj.weight", [HIDDEN, INNER]


def pattern():
    """Small numbers of both signs; a prime number of different ones, repeated."""
    state, words = 1, []
    for _ in range(65521):
        state = state * 1103515245 + 12345 & 0x7FFFFFFF
        words.append((state >> 15 & 0x8000) | 0x3C00 + (state >> 8 & 0xFF))  # magnitudes around 0.01
    return struct.pack(f"<{len(words)}H", *words) * 32


def write_model(directory, demo):
    """Writes the model; returns its size in bytes."""
    for name in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(demo / name, directory / name)
    config = json.loads((demo / "config.json").read_text())
    config.update(hidden_size=HIDDEN, intermediate_size=INNER, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
                  num_key_value_heads=KV_HEADS, head_dim=HEAD_SIZE, vocab_size=VOCAB)
    (directory / "config.json").write_text(json.dumps(config))
    header, offset = {}, 0
    for name, shape in tensors():
        size = 2 * shape[0] * (shape[1] if len(shape) == 2 else 1)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    piece, left = pattern(), offset
    with open(directory / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        while left > 0:
            left -= file.write(piece[:left])
    return offset
