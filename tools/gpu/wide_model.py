"""Writes untrained models as wide as real ones, to measure. What a step costs does not depend on the tokens.

The demo model's tokenizer, weights of one pattern in bf16. KVHIVE_LAYERS: how many layers Llama has.
"""
import json
import os
import shutil
import struct

LAYERS = int(os.environ.get("KVHIVE_LAYERS", "16"))
VOCAB = 2048

# Llama has a billion parameters; the others are eight layers of Qwen3-30B-A3B and of DeepSeek-V2-Lite with half the experts.
CONFIGS = {
    "llama": {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": LAYERS, "num_attention_heads": 32,
              "num_key_value_heads": 8, "head_dim": 64},
    "qwen3_moe": {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144,
                  "num_hidden_layers": 8, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "num_experts": 64,
                  "num_experts_per_tok": 8, "moe_intermediate_size": 768, "norm_topk_prob": True, "decoder_sparse_step": 1,
                  "mlp_only_layers": []},
    "deepseek_v2": {"architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "hidden_size": 2048,
                    "intermediate_size": 10944, "num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": 16,
                    "head_dim": None, "kv_lora_rank": 512, "q_lora_rank": None, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
                    "v_head_dim": 128, "n_routed_experts": 32, "n_shared_experts": 2, "num_experts_per_tok": 6,
                    "moe_intermediate_size": 1408, "first_k_dense_replace": 1, "moe_layer_freq": 1, "topk_method": "greedy",
                    "n_group": 1, "topk_group": 1, "norm_topk_prob": False, "routed_scaling_factor": 1.0, "scoring_func": "softmax"},
}


def network(name, hidden, inner):
    yield name + "gate_proj.weight", [inner, hidden]
    yield name + "up_proj.weight", [inner, hidden]
    yield name + "down_proj.weight", [hidden, inner]


def attention(name, c):
    hidden, heads = c["hidden_size"], c["num_attention_heads"]
    if "kv_lora_rank" in c:
        rank, nope, rope, value = (c[f] for f in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
        yield name + "q_proj.weight", [heads * (nope + rope), hidden]
        yield name + "kv_a_proj_with_mqa.weight", [rank + rope, hidden]
        yield name + "kv_a_layernorm.weight", [rank]
        yield name + "kv_b_proj.weight", [heads * (nope + value), rank]
        yield name + "o_proj.weight", [hidden, heads * value]
        return
    size = c["head_dim"]
    yield name + "q_proj.weight", [heads * size, hidden]
    yield name + "k_proj.weight", [c["num_key_value_heads"] * size, hidden]
    yield name + "v_proj.weight", [c["num_key_value_heads"] * size, hidden]
    yield name + "o_proj.weight", [hidden, heads * size]
    if "num_experts" in c:
        yield name + "q_norm.weight", [size]
        yield name + "k_norm.weight", [size]


def tensors(c):
    hidden = c["hidden_size"]
    yield "model.embed_tokens.weight", [VOCAB, hidden]
    yield "model.norm.weight", [hidden]
    for layer in range(c["num_hidden_layers"]):
        name = f"model.layers.{layer}."
        yield name + "input_layernorm.weight", [hidden]
        yield name + "post_attention_layernorm.weight", [hidden]
        yield from attention(name + "self_attn.", c)
        experts = c.get("num_experts", c.get("n_routed_experts", 0))
        if experts == 0 or layer < c.get("first_k_dense_replace", 0):
            yield from network(name + "mlp.", hidden, c["intermediate_size"])
            continue
        yield name + "mlp.gate.weight", [experts, hidden]
        for expert in range(experts):
            yield from network(f"{name}mlp.experts.{expert}.", hidden, c["moe_intermediate_size"])
        if "n_shared_experts" in c:
            yield from network(name + "mlp.shared_experts.", hidden, c["n_shared_experts"] * c["moe_intermediate_size"])


def pattern():
    """Small numbers of both signs; a prime number of different ones, repeated."""
    state, words = 1, []
    for _ in range(65521):
        state = state * 1103515245 + 12345 & 0x7FFFFFFF
        words.append((state >> 15 & 0x8000) | 0x3C00 + (state >> 8 & 0xFF))  # magnitudes around 0.01
    return struct.pack(f"<{len(words)}H", *words) * 32


def write_model(directory, demo, kind="llama"):
    """Writes the model; returns its size in bytes."""
    for name in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(demo / name, directory / name)
    config = json.loads((demo / "config.json").read_text())
    config.update(CONFIGS[kind], vocab_size=VOCAB)
    if config["head_dim"] is None:
        del config["head_dim"]
    (directory / "config.json").write_text(json.dumps(config))
    header, offset = {}, 0
    for name, shape in tensors(config):
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
