#!/usr/bin/env python3
"""Writes tiny random models in Hugging Face's layout, and their correct logits.

An implementation of the model families written apart from the C++ one: float64 throughout, no KV
cache, no batch, one sequence attending to itself under a mask. Only the weights are rounded, to the
dtype they are stored in. Needs Python 3 and numpy; deterministic. Run it in this folder:

    ./make_golden.py [MODEL...]     all models, or only these

Each model's folder gets config.json, its safetensors and golden.json: the prompt's tokens, the tokens
that greedy decoding continues it with, and a file golden.f64 with the logits of every position of
the prompt, [tokens, vocab] little-endian float64. Models with latent attention get rounded.f64, too: the
same with the latent rows rounded to bfloat16, as a cache keeps them. A choice that is so close that rounding could turn
it ends greedy decoding if it is of a token, and asks for other random weights if it is of an expert.
"""

import json
import math
import os
import struct
import sys

import numpy as np

VOCAB = 96
TOKENS = 45
GREEDY = 12
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


def float_of_e4m3(code):
    """The value of one code of FP8 E4M3 (no infinities, 0x7f is NaN)."""
    sign, exponent, mantissa = -1 if code & 0x80 else 1, code >> 3 & 15, code & 7
    if exponent == 15 and mantissa == 7:
        return math.nan
    return sign * (mantissa / 8 * 2**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7))


E4M3 = np.array([float_of_e4m3(code) for code in range(128) if code != 0x7F])  # ascending


def to_e4m3(x):
    """The nearest code of each value."""
    right = np.clip(np.searchsorted(E4M3, np.abs(x)), 1, len(E4M3) - 1)
    code = np.where(np.abs(x) - E4M3[right - 1] < E4M3[right] - np.abs(x), right - 1, right)
    code = (code | (x < 0) * 0x80).astype(np.uint8)
    return code.tobytes(), np.where(code & 0x80, -1, 1) * E4M3[code & 0x7F]


def scaled_blocks(x, rows, columns):
    """Quantizes x [N, K] with a scale for each block of rows x columns. Returns (the codes' bytes,
    the scales [blocks down, blocks across], the values that both stand for)."""
    down, across = -(-x.shape[0] // rows), -(-x.shape[1] // columns)
    scales = np.array([[np.abs(x[i * rows:(i + 1) * rows, j * columns:(j + 1) * columns]).max() / 448
                        for j in range(across)] for i in range(down)]).astype(np.float32)
    wide = np.repeat(np.repeat(scales, rows, 0), columns, 1)[:x.shape[0], :x.shape[1]].astype(np.float64)
    data, values = to_e4m3(x / wide)
    return data, scales, values * wide


# ---- weights in integers ----

def integers(x, bits, group, is_symmetric, groups=None):
    """Quantizes x [N, K] by groups of columns, which `groups` [K] names, with a scale and a zero for each row of each. Returns (codes
    [N, K], scales [N, G] in float16, zeros [N, G], the values that they stand for)."""
    N, K = x.shape
    groups = np.arange(K) // group if groups is None else groups
    G, most = groups.max() + 1, 2**bits - 1
    scales, zeros = np.zeros((N, G), np.float16), np.zeros((N, G), int)
    for g in range(G):
        part = x[:, groups == g]
        low, high = np.minimum(part.min(1), 0), np.maximum(part.max(1), 0)
        if is_symmetric:
            high = np.maximum(high, -low)
            low = -high
        scales[:, g] = (high - low) / most
        zeros[:, g] = (most + 1) // 2 if is_symmetric else np.clip(np.round(-low / scales[:, g].astype(float)), 0, most)
    wide, middles = scales[:, groups].astype(np.float64), zeros[:, groups]
    codes = np.clip(np.round(x / wide) + middles, 0, most).astype(int)
    return codes, scales, zeros, (codes - middles) * wide


def words(codes, bits, order=range(32)):
    """Codes [rows, n] as words of 32 bits [rows, n / codes of a word]; the i-th from the lowest bits on is the order[i]-th of a word."""
    in_word = 32 // bits
    parts = codes.reshape(codes.shape[0], -1, in_word).astype(np.uint64)
    return sum(parts[:, :, order[i]] << np.uint64(bits * i) for i in range(in_word)).astype(np.uint32)


def stored(array, kind):
    return kind, array.shape, np.ascontiguousarray(array).tobytes()


def gptq(x, base, how, random):
    """As AutoGPTQ and GPTQModel write a matrix: everything transposed, zeros less 1 but in the second format."""
    K = x.shape[1]
    group = how["group_size"] if how["group_size"] > 0 else K
    groups = np.arange(K) // group
    if how["desc_act"]:
        random.shuffle(groups)
    codes, scales, zeros, values = integers(x, how["bits"], group, how["sym"], groups)
    less = 0 if how.get("checkpoint_format") == "gptq_v2" else 1
    return {base + "qweight": stored(words(codes, how["bits"]).T, "I32"),
            base + "qzeros": stored(words((zeros.T - less) % 2**how["bits"], how["bits"]), "I32"),
            base + "scales": stored(scales.T, "F16"), base + "g_idx": stored(groups.astype(np.int32), "I32")}, values


AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def awq(x, base, how):
    """As AutoAWQ writes it: by columns, eight rows in a word."""
    codes, scales, zeros, values = integers(x, 4, how["group_size"], False)
    return {base + "qweight": stored(words(codes.T, 4, AWQ_ORDER), "I32"), base + "qzeros": stored(words(zeros.T, 4, AWQ_ORDER), "I32"),
            base + "scales": stored(scales.T, "F16")}, values


def compressed(x, base, how):
    """As llm-compressor writes integers: by rows, in words or, with the format int-quantized, in bytes with a sign."""
    weights = how["config_groups"]["group_0"]["weights"]
    bits, group = weights["num_bits"], weights.get("group_size", x.shape[1])
    codes, scales, zeros, values = integers(x, bits, group, weights["symmetric"])
    tensors = {base + "weight_scale": stored(scales, "F16")}
    if how["format"] == "int-quantized":
        tensors[base + "weight"] = stored((codes - 128).astype(np.int8), "I8")
    else:
        tensors[base + "weight_packed"] = stored(words(codes, bits), "I32")
        tensors[base + "weight_shape"] = stored(np.array(x.shape, np.int64), "I64")
    if not weights["symmetric"]:
        tensors[base + "weight_zero_point"] = stored(words(zeros.T, bits).T, "I32")
    return tensors, values


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

def is_gemma(c):
    return c["architectures"][0].startswith("Gemma")


def is_latent(c):
    return "kv_lora_rank" in c


def is_llama4(c):
    return c["architectures"] == ["Llama4ForCausalLM"]


def is_rotated(c, layer):
    """Llama 4's no_rope_layers has a 1 for the layers that rotate."""
    if not is_llama4(c):
        return True
    return c["no_rope_layers"][layer] == 1 if c["no_rope_layers"] else (layer + 1) % c["no_rope_layer_interval"] != 0


def is_sparse(c, layer):
    if is_llama4(c):
        return (layer + 1) % c["interleave_moe_layer_step"] == 0
    if is_latent(c):
        return layer >= c["first_k_dense_replace"] and layer % c["moe_layer_freq"] == 0
    return ("num_experts" in c and layer not in c["mlp_only_layers"]
            and (layer + 1) % c["decoder_sparse_step"] == 0)


def latent_shapes(c, prefix):
    """Of DeepSeek-V2's attention."""
    h, heads, rank, rope = (c[k] for k in ("hidden_size", "num_attention_heads", "kv_lora_rank", "qk_rope_head_dim"))
    nope, value, narrow = (c[k] for k in ("qk_nope_head_dim", "v_head_dim", "q_lora_rank"))
    q = heads * (nope + rope)
    shapes = {"q_proj": (q, h)} if narrow is None else {
        "q_a_proj": (narrow, h), "q_a_layernorm": (narrow,), "q_b_proj": (q, narrow)}
    shapes |= {"kv_a_proj_with_mqa": (rank + rope, h), "kv_a_layernorm": (rank,),
               "kv_b_proj": (heads * (nope + value), rank), "o_proj": (h, heads * value)}
    return {f"{prefix}{name}.weight": shape for name, shape in shapes.items()}


def experts_of(c):
    return c["n_routed_experts"] if is_latent(c) else c["num_experts"]


def llama4_feed_forward(c, prefix, is_sparse):
    """Experts lie in two tensors, transposed; intermediate_size is their width."""
    h, wide, count = c["hidden_size"], c["intermediate_size"], c["num_local_experts"]
    network = lambda prefix, wide: {prefix + "gate_proj.weight": (wide, h), prefix + "up_proj.weight": (wide, h),
                                    prefix + "down_proj.weight": (h, wide)}
    if not is_sparse:
        return network(prefix, c["intermediate_size_mlp"])
    return network(prefix + "shared_expert.", wide) | {
        prefix + "router.weight": (count, h), prefix + "experts.gate_up_proj": (count, h, 2 * wide),
        prefix + "experts.down_proj": (count, wide, h)}


def weight_shapes(c):
    """Hugging Face's names and shapes of a model's tensors."""
    h, inner, d = c["hidden_size"], c["intermediate_size"], head_dim(c)
    q, kv = c["num_attention_heads"] * d, c["num_key_value_heads"] * d
    shapes = {"model.embed_tokens.weight": (VOCAB, h)}
    for i in range(c["num_hidden_layers"]):
        a, m = f"model.layers.{i}.self_attn.", f"model.layers.{i}.mlp."
        shapes.update({f"model.layers.{i}.input_layernorm.weight": (h,),
                       f"model.layers.{i}.post_attention_layernorm.weight": (h,)})
        shapes.update(latent_shapes(c, a) if is_latent(c) else {
            a + "q_proj.weight": (q, h), a + "k_proj.weight": (kv, h),
            a + "v_proj.weight": (kv, h), a + "o_proj.weight": (h, q)})
        if is_llama4(c):
            shapes.update(llama4_feed_forward(c, f"model.layers.{i}.feed_forward.", is_sparse(c, i)))
        elif is_sparse(c, i):
            wide = c["moe_intermediate_size"]
            shapes[m + "gate.weight"] = (experts_of(c), h)
            if is_latent(c):
                shared = wide * c["n_shared_experts"]
                shapes.update({m + "shared_experts.gate_proj.weight": (shared, h),
                               m + "shared_experts.up_proj.weight": (shared, h),
                               m + "shared_experts.down_proj.weight": (h, shared)})
            for e in range(experts_of(c)):
                shapes.update({f"{m}experts.{e}.gate_proj.weight": (wide, h),
                               f"{m}experts.{e}.up_proj.weight": (wide, h),
                               f"{m}experts.{e}.down_proj.weight": (h, wide)})
        else:
            shapes.update({m + "gate_proj.weight": (inner, h), m + "up_proj.weight": (inner, h),
                           m + "down_proj.weight": (h, inner)})
        if c["architectures"] == ["Qwen2ForCausalLM"]:
            shapes.update({a + "q_proj.bias": (q,), a + "k_proj.bias": (kv,), a + "v_proj.bias": (kv,)})
        if c["architectures"][0] in ("Qwen3ForCausalLM", "Qwen3MoeForCausalLM", "Gemma3ForCausalLM"):
            shapes.update({a + "q_norm.weight": (d,), a + "k_norm.weight": (d,)})
        if is_gemma(c):
            shapes.update({f"model.layers.{i}.pre_feedforward_layernorm.weight": (h,),
                           f"model.layers.{i}.post_feedforward_layernorm.weight": (h,)})
    shapes["model.norm.weight"] = (h,)
    if not c["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (VOCAB, h)
    return shapes


def random_weight(random, c, name, shape):
    if name.endswith("norm.weight"):
        return (0 if is_gemma(c) else 1) + 0.2 * random.standard_normal(shape)
    if len(shape) == 1:
        return 0.5 * random.standard_normal(shape)
    gain = 1.5 / math.sqrt(shape[1])  # what packed experts multiply is as wide
    if name == "model.embed_tokens.weight":  # Gemma's are scaled later
        gain = 1 / math.sqrt(shape[1]) if is_gemma(c) else 1.0
    return gain * random.standard_normal(shape)


# ---- quantized weights: (tensors to store, the float64 values they stand for) ----

def quantized(c, name, weight, random):
    """A weight as a published checkpoint with this quantization_config has it; None: not quantized."""
    how = c.get("quantization_config")
    base = name.removesuffix("weight")
    if how is None or not base.endswith("_proj."):
        return None
    if how["quant_method"] == "gptq":
        return gptq(weight, base, how, random)
    if how["quant_method"] == "awq":
        return awq(weight, base, how)
    if how.get("format") in ("pack-quantized", "int-quantized"):
        return compressed(weight, base, how)
    if "weight_block_size" in how:  # DeepSeek's and Qwen's FP8 checkpoints
        data, scales, values = scaled_blocks(weight, *how["weight_block_size"])
        kind, suffix = scales, "weight_scale_inv"
    elif how["quant_method"] == "fp8":  # one scale for a tensor, a scalar
        data, scales, values = scaled_blocks(weight, *weight.shape)
        kind, suffix = scales.reshape(()), "weight_scale"
    else:  # compressed-tensors: one for each row
        data, scales, values = scaled_blocks(weight, 1, weight.shape[1])
        kind, suffix = scales, "weight_scale"
    return {name: ("F8_E4M3", weight.shape, data), base + suffix: ("F32", kind.shape, kind.tobytes())}, values


KV_GAIN = 1000.0  # of V, and K of a model with scales: far above what e4m3 holds by itself


def spread_kv(tensors, values, layer):
    """Makes the layer's K and V large, q and o small to match, and writes k_scale and v_scale."""
    prefix = f"model.layers.{layer}.self_attn."
    for part, gain in (("k", KV_GAIN), ("v", KV_GAIN), ("q", 1 / KV_GAIN), ("o", 1 / KV_GAIN)):
        values[f"{prefix}{part}_proj.weight"] = values[f"{prefix}{part}_proj.weight"] * gain
        kind, shape, data = tensors[f"{prefix}{part}_proj.weight_scale"]
        scaled = (np.frombuffer(data, np.float32) * np.float32(gain))
        tensors[f"{prefix}{part}_proj.weight_scale"] = (kind, shape, scaled.tobytes())
    for part, largest in (("k", 12), ("v", 8)):
        scale = np.float32(KV_GAIN * largest / 448)
        tensors[f"{prefix}{part}_scale"] = ("F32", (), scale.tobytes())


# ---- the model ----

def head_dim(c):
    if is_latent(c):
        return c["qk_rope_head_dim"]  # what is rotated
    return c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]


def rms_norm(c, x, weight, eps=RMS_EPS):
    scale = 1 + weight if is_gemma(c) else weight
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * scale


def is_sliding(c, layer):
    if c["architectures"] == ["Gemma2ForCausalLM"]:
        return layer % 2 == 0
    if c["architectures"] == ["Gemma3ForCausalLM"]:
        return (layer + 1) % c["sliding_window_pattern"] != 0
    return "sliding_window" in c and c.get("use_sliding_window", True)


def yarn(c, freq, scaling):
    """Peng et al., YaRN (2023), as transformers computes it. Returns (frequencies, factor of cos and sin)."""
    d, base, factor = head_dim(c), c["rope_theta"], scaling["factor"]
    context = scaling["original_max_position_embeddings"]

    def dimension(turns):
        return d * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = dimension(scaling.get("beta_fast", 32)), dimension(scaling.get("beta_slow", 1))
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, d - 1)
    stretched = np.clip((np.arange(d // 2) - low) / (high - low), 0, 1)
    mscale = lambda of: 0.1 * of * math.log(factor) + 1
    attention = mscale(1)
    if "mscale" in scaling:
        attention = mscale(scaling["mscale"]) / mscale(scaling["mscale_all_dim"])
    return stretched * freq / factor + (1 - stretched) * freq, scaling.get("attention_factor", attention)


def rope_frequencies(c, layer):
    """Returns (angles per position, factor of cos and sin)."""
    d = head_dim(c)
    is_local = "rope_local_base_freq" in c and is_sliding(c, layer)
    freq = c["rope_local_base_freq" if is_local else "rope_theta"] ** -(np.arange(0, d, 2) / d)
    scaling = c.get("rope_scaling")
    if not scaling or is_local:
        return freq, 1
    if scaling["rope_type"] == "linear":
        return freq / scaling["factor"], 1
    if scaling["rope_type"] == "yarn":
        return yarn(c, freq, scaling)
    context, low, high = (scaling[k] for k in ("original_max_position_embeddings", "low_freq_factor",
                                               "high_freq_factor"))
    turns = context * freq / (2 * math.pi)  # full turns within the original context
    blend = np.clip((turns - low) / (high - low), 0, 1)
    return blend * freq + (1 - blend) * freq / scaling["factor"], 1


def rotate(x, freq, factor):
    """x: [tokens, heads, d]; dims (i, i + d/2) turn as a complex number."""
    half = x.shape[-1] // 2
    z = x[..., :half] + 1j * x[..., half:]
    z = z * np.exp(1j * np.arange(len(x))[:, None, None] * freq)
    return factor * np.concatenate([z.real, z.imag], axis=-1)


def rotate_neighbours(x, freq, factor):
    """x: [tokens, heads, d]; dims (2i, 2i+1) turn as a complex number."""
    z = (x[..., 0::2] + 1j * x[..., 1::2]) * np.exp(1j * np.arange(len(x))[:, None, None] * freq)
    out = np.empty_like(x)
    out[..., 0::2], out[..., 1::2] = factor * z.real, factor * z.imag
    return out


def latent_attention(c, w, layer, x):
    """DeepSeek-V2, as its class computes it: K and V of every head are made of every token's latent."""
    n, heads = len(x), c["num_attention_heads"]
    nope, rank = c["qk_nope_head_dim"], c["kv_lora_rank"]
    of = lambda part: w[f"model.layers.{layer}.self_attn.{part}.weight"]
    norm = lambda y, part: rms_norm(c, y, of(part), 1e-6)  # its class's default, not rms_norm_eps
    if c["q_lora_rank"] is None:
        q = x @ of("q_proj").T
    else:
        q = norm(x @ of("q_a_proj").T, "q_a_layernorm") @ of("q_b_proj").T
    q = q.reshape(n, heads, -1)
    row = x @ of("kv_a_proj_with_mqa").T
    kept = (lambda y: to_bf16(y)[1]) if c.get("has_rounded_rows") else (lambda y: y)
    kv = (kept(norm(row[:, :rank], "kv_a_layernorm")) @ of("kv_b_proj").T).reshape(n, heads, -1)
    freq = rope_frequencies(c, layer)
    shared_key = kept(rotate_neighbours(row[:, None, rank:], *freq))
    scores = (np.einsum("ihd,jhd->hij", q[..., :nope], kv[..., :nope])
              + np.einsum("ihd,jd->hij", rotate_neighbours(q[..., nope:], *freq), shared_key[:, 0]))
    scores /= math.sqrt(q.shape[-1])
    scaling = c.get("rope_scaling") or {}
    if scaling.get("mscale_all_dim"):
        scores *= (0.1 * scaling["mscale_all_dim"] * math.log(scaling["factor"]) + 1) ** 2
    scores = np.where(np.arange(n)[None, :] <= np.arange(n)[:, None], scores, -np.inf)
    p = np.exp(scores - scores.max(axis=-1, keepdims=True))
    p /= p.sum(axis=-1, keepdims=True)
    return np.einsum("hij,jhd->ihd", p, kv[..., nope:]).reshape(n, -1) @ of("o_proj").T


def capped(x, cap):
    return cap * np.tanh(x / cap) if cap else x


def llama4_places(c, layer, q, k):
    """Llama 4: queries and keys [tokens, heads, d] with their positions, if the layer rotates; else longer queries."""
    if not is_rotated(c, layer):
        at = np.floor((np.arange(len(q)) + 1) / c["floor_scale"])
        return q * (np.log(at + 1) * c["attn_scale"] + 1)[:, None, None] if c["attn_temperature_tuning"] else q, k
    q, k = (rotate_neighbours(y, *rope_frequencies(c, layer)) for y in (q, k))
    l2 = lambda y: y / np.sqrt(np.mean(y * y, axis=-1, keepdims=True) + RMS_EPS)
    return (l2(q), l2(k)) if c["use_qk_norm"] else (q, k)


def attention(c, w, layer, x):
    if is_latent(c):
        return latent_attention(c, w, layer, x)
    n, d, prefix = len(x), head_dim(c), f"model.layers.{layer}.self_attn."
    project = lambda part: (x @ w[f"{prefix}{part}_proj.weight"].T
                            + w.get(f"{prefix}{part}_proj.bias", 0)).reshape(n, -1, d)
    q, k, v = project("q"), project("k"), project("v")
    if prefix + "q_norm.weight" in w:
        q, k = rms_norm(c, q, w[prefix + "q_norm.weight"]), rms_norm(c, k, w[prefix + "k_norm.weight"])
    if is_llama4(c):
        q, k = llama4_places(c, layer, q, k)
    else:
        freq = rope_frequencies(c, layer)
        q, k = rotate(q, *freq), rotate(k, *freq)
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scores = np.einsum("ihd,jhd->hij", q, k) / math.sqrt(c.get("query_pre_attn_scalar", d))
    scores = capped(scores, c.get("attn_logit_softcapping"))
    i, j = np.arange(n)[:, None], np.arange(n)[None, :]
    window = c["sliding_window"] if is_sliding(c, layer) else n
    chunk = c["attention_chunk_size"] if is_llama4(c) and is_rotated(c, layer) else n
    scores = np.where((j <= i) & (i - j < window) & (i // chunk == j // chunk), scores, -np.inf)
    p = np.exp(scores - scores.max(axis=-1, keepdims=True))
    p /= p.sum(axis=-1, keepdims=True)
    return np.einsum("hij,jhd->ihd", p, v).reshape(n, -1) @ w[prefix + "o_proj.weight"].T


def gated(c, w, prefix, x):
    gate, up = (x @ w[f"{prefix}{part}_proj.weight"].T for part in ("gate", "up"))
    if is_gemma(c):
        act = 0.5 * gate * (1 + np.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)))
    else:
        act = gate / (1 + np.exp(-gate))
    return (act * up) @ w[prefix + "down_proj.weight"].T


def experts_of_groups(c, logits, margins):
    """DeepSeek-V2's group_limited_greedy: the experts that a token chooses from."""
    if c.get("topk_method", "greedy") == "greedy":
        return np.arange(len(logits))
    groups = np.arange(len(logits)).reshape(c["n_group"], -1)
    order = np.argsort(-logits[groups].max(axis=1))
    margins.append(logits[groups[order[c["topk_group"] - 1]]].max() - logits[groups[order[c["topk_group"]]]].max())
    return groups[order[:c["topk_group"]]].ravel()


def experts(c, w, prefix, x, margins):
    """Each token's num_experts_per_tok most likely experts, weighted by their probabilities."""
    logits = x @ w[prefix + "gate.weight"].T
    chances = np.exp(logits - logits.max(axis=-1, keepdims=True))
    chances /= chances.sum(axis=-1, keepdims=True)
    out = np.zeros_like(x)
    for t in range(len(x)):
        allowed = experts_of_groups(c, logits[t], margins)
        order = allowed[np.argsort(-chances[t][allowed])]
        chosen, others = order[:c["num_experts_per_tok"]], order[c["num_experts_per_tok"]:]
        margins.append(logits[t, chosen[-1]] - logits[t, others[0]])
        total = chances[t, chosen].sum() if c["norm_topk_prob"] else 1
        for e in chosen:
            out[t] += c.get("routed_scaling_factor", 1) * chances[t, e] / total * gated(c, w, f"{prefix}experts.{e}.", x[t])
    return out + gated(c, w, prefix + "shared_experts.", x) if is_latent(c) else out


def llama4_experts(c, w, prefix, x, margins):
    """Each token's num_experts_per_tok experts with the highest logits, whose sigmoid weights what goes in, and one for all."""
    logits = x @ w[prefix + "router.weight"].T
    out = gated(c, w, prefix + "shared_expert.", x)
    for t in range(len(x)):
        order = np.argsort(-logits[t])
        chosen, others = order[:c["num_experts_per_tok"]], order[c["num_experts_per_tok"]:]
        margins.append(logits[t, chosen[-1]] - logits[t, others[0]])
        for e in chosen:
            both = x[t] / (1 + np.exp(-logits[t, e])) @ w[prefix + "experts.gate_up_proj"][e]
            gate, up = np.split(both, 2)
            out[t] += gate / (1 + np.exp(-gate)) * up @ w[prefix + "experts.down_proj"][e]
    return out


def embedding_scale(c):
    """Gemma's root of the width, rounded as the weights are."""
    if not is_gemma(c):
        return 1
    return DTYPES[c["torch_dtype"]][1](np.array([math.sqrt(c["hidden_size"])]))[1][0]


def forward(c, w, tokens, margins=None):
    """Logits [tokens, vocab]. To `margins` is added by how much the last expert was chosen."""
    margins = [] if margins is None else margins
    x = w["model.embed_tokens.weight"][tokens] * embedding_scale(c)
    for i in range(c["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        norm = lambda name, y: rms_norm(c, y, w[f"{layer}{name}_layernorm.weight"])
        y = attention(c, w, i, norm("input", x))
        x = x + (norm("post_attention", y) if is_gemma(c) else y)
        y = norm("pre_feedforward" if is_gemma(c) else "post_attention", x)
        network = layer + ("feed_forward." if is_llama4(c) else "mlp.")
        mixture = llama4_experts if is_llama4(c) else experts
        y = mixture(c, w, network, y, margins) if is_sparse(c, i) else gated(c, w, network, y)
        x = x + (norm("post_feedforward", y) if is_gemma(c) else y)
    head = w.get("lm_head.weight", w["model.embed_tokens.weight"])
    return capped(rms_norm(c, x, w["model.norm.weight"]) @ head.T, c.get("final_logit_softcapping"))


def greedy(c, w, tokens):
    """Continues the tokens with the most likely ones, up to the first that hardly wins."""
    tokens = list(tokens)
    for count in range(GREEDY):
        last = forward(c, w, np.array(tokens))[-1]
        first, second = np.sort(last)[::-1][:2]
        if first - second < close(c) * np.sqrt(np.mean(last * last)):
            break
        tokens.append(int(np.argmax(last)))
    return tokens[TOKENS:]


# ---- the models ----

def config(architecture, dtype, **fields):
    return {"architectures": [architecture], "hidden_size": 32, "intermediate_size": 48,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
            "vocab_size": VOCAB, "rms_norm_eps": RMS_EPS, "rope_theta": 10000.0, "hidden_act": "silu",
            "max_position_embeddings": 128, "tie_word_embeddings": False, "torch_dtype": dtype,
            "bos_token_id": 1, "eos_token_id": 2, **fields}


LLAMA3_SCALING = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                  "original_max_position_embeddings": 32}
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}
COMPRESSED = {"quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ["lm_head"],
              "config_groups": {"group_0": {
                  "targets": ["Linear"],
                  "weights": {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True,
                              "dynamic": False},
                  "input_activations": {"num_bits": 8, "type": "float", "strategy": "token",
                                        "symmetric": True, "dynamic": True}}}}
def llm_compressor(form, **weights):
    return {"quant_method": "compressed-tensors", "format": form, "ignore": ["lm_head"], "config_groups": {"group_0": {
        "targets": ["Linear"], "input_activations": None,
        "weights": {"type": "int", "dynamic": False, "actorder": None, "symmetric": True, **weights}}}}


WIDE = {"hidden_size": 64, "intermediate_size": 96}  # of whole groups
LATENT = {"num_key_value_heads": 4, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "q_lora_rank": None,
          "qk_nope_head_dim": 16, "v_head_dim": 8, "n_routed_experts": 6, "num_experts_per_tok": 2,
          "moe_intermediate_size": 24, "n_shared_experts": 1, "first_k_dense_replace": 0, "moe_layer_freq": 1,
          "routed_scaling_factor": 1.0, "topk_method": "greedy", "norm_topk_prob": False,
          "scoring_func": "softmax"}
LLAMA4 = {"num_hidden_layers": 3, "head_dim": 16, "intermediate_size_mlp": 40, "num_local_experts": 4, "num_experts_per_tok": 1,
          "attention_chunk_size": 16, "floor_scale": 8, "attn_scale": 0.3, "use_qk_norm": False,
          "attn_temperature_tuning": False, "interleave_moe_layer_step": 1}
MODELS = {
    "llama2": (config("LlamaForCausalLM", "float32", num_key_value_heads=4, rope_scaling=None), 1),
    "llama3": (config("LlamaForCausalLM", "bfloat16", rope_theta=500.0, rope_scaling=LLAMA3_SCALING,
                      tie_word_embeddings=True, eos_token_id=[2, 3]), 1),
    "mistral": (config("MistralForCausalLM", "float16", sliding_window=11), 1),
    "qwen2": (config("Qwen2ForCausalLM", "float32", use_sliding_window=False, sliding_window=7,
                     rope_scaling={"rope_type": "linear", "factor": 2.0}), 3),
    "qwen3": (config("Qwen3ForCausalLM", "bfloat16", head_dim=16, rope_theta=1e6), 1),
    "gemma2": (config("Gemma2ForCausalLM", "float32", num_hidden_layers=3, head_dim=16, sliding_window=11,
                      tie_word_embeddings=True, hidden_activation="gelu_pytorch_tanh",
                      attn_logit_softcapping=3.0, final_logit_softcapping=2.0,
                      query_pre_attn_scalar=24), 1),
    "gemma3": (config("Gemma3ForCausalLM", "bfloat16", num_hidden_layers=4, head_dim=16, sliding_window=9,
                      sliding_window_pattern=3, tie_word_embeddings=True, query_pre_attn_scalar=20,
                      hidden_activation="gelu_pytorch_tanh", rope_local_base_freq=100.0,
                      rope_scaling={"rope_type": "linear", "factor": 8.0}), 1),
    "qwen3_moe": (config("Qwen3MoeForCausalLM", "bfloat16", num_hidden_layers=3, head_dim=16, num_experts=6,
                         num_experts_per_tok=2, moe_intermediate_size=24, norm_topk_prob=True,
                         decoder_sparse_step=1, mlp_only_layers=[1]), 1),
    "qwen3_moe_raw": (config("Qwen3MoeForCausalLM", "float32", head_dim=16, num_experts=5,
                             num_experts_per_tok=3, moe_intermediate_size=24, norm_topk_prob=False,
                             decoder_sparse_step=2, mlp_only_layers=[]), 1),
    "yarn": (config("LlamaForCausalLM", "float32", head_dim=16, rope_theta=500.0,
                    rope_scaling={"rope_type": "yarn", "factor": 4.0, "beta_fast": 8.0,
                                  "original_max_position_embeddings": 32}), 1),
    "yarn_mscale": (config("Qwen3ForCausalLM", "float32", head_dim=16, rope_theta=500.0,
                           rope_scaling={"type": "yarn", "rope_type": "yarn", "factor": 8.0, "mscale": 0.7,
                                         "mscale_all_dim": 1.5, "beta_fast": 16, "beta_slow": 2,
                                         "truncate": False, "original_max_position_embeddings": 64}), 1),
    "fp8_block": (config("Qwen3MoeForCausalLM", "bfloat16", head_dim=16, num_experts=4, num_experts_per_tok=2,
                         moe_intermediate_size=24, norm_topk_prob=True, decoder_sparse_step=2,
                         mlp_only_layers=[], quantization_config=FP8 | {"weight_block_size": [16, 20]}), 1),
    "fp8_tensor": (config("LlamaForCausalLM", "float32", quantization_config=FP8 | {
        "activation_scheme": "static"}), 3),
    "fp8_channel": (config("Qwen2ForCausalLM", "float16", quantization_config=COMPRESSED), 1),
    "deepseek_v2": (config("DeepseekV2ForCausalLM", "bfloat16", **LATENT | {
        "q_lora_rank": 24, "qk_nope_head_dim": 8, "v_head_dim": 16, "first_k_dense_replace": 1,
        "n_routed_experts": 8, "n_shared_experts": 2, "topk_method": "group_limited_greedy", "n_group": 2,
        "topk_group": 1, "routed_scaling_factor": 2.5, "rope_scaling": {
            "type": "yarn", "rope_type": "yarn", "factor": 8.0, "mscale": 0.7, "mscale_all_dim": 1.2, "beta_fast": 8,
            "beta_slow": 1, "original_max_position_embeddings": 32}}), 1),
    "deepseek_v2_lite": (config("DeepseekV2ForCausalLM", "float32", **LATENT | {
        "num_attention_heads": 2, "num_key_value_heads": 2}), 1),
    "llama4": (config("Llama4ForCausalLM", "float32", **LLAMA4 | {
        "no_rope_layers": [1, 0, 1], "use_qk_norm": True, "attn_temperature_tuning": True,
        "interleave_moe_layer_step": 2, "rope_scaling": LLAMA3_SCALING}), 1),
    "llama4_top2": (config("Llama4ForCausalLM", "bfloat16", **LLAMA4 | {
        "num_experts_per_tok": 2, "no_rope_layers": [], "no_rope_layer_interval": 3}), 1),
    "gptq": (config("LlamaForCausalLM", "float16", **WIDE, quantization_config={
        "quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": False, "damp_percent": 0.01,
        "static_groups": False, "true_sequential": True}), 3),
    "gptq_act_order": (config("Qwen2ForCausalLM", "bfloat16", **WIDE, quantization_config={
        "quant_method": "gptq", "bits": 8, "group_size": 32, "desc_act": True, "sym": False, "checkpoint_format": "gptq_v2",
        "lm_head": False, "pack_dtype": "int32", "meta": {"quantizer": ["gptqmodel:2.2.0"]}}), 1),
    "gptq_symmetric": (config("Qwen2ForCausalLM", "float16", **WIDE, quantization_config={
        "quant_method": "gptq", "bits": 8, "group_size": -1, "desc_act": False, "sym": True}), 1),
    "awq": (config("MistralForCausalLM", "bfloat16", **WIDE, sliding_window=11, quantization_config={
        "quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True,
        "modules_to_not_convert": None}), 1),
    "awq_half": (config("Qwen2ForCausalLM", "float16", **WIDE, quantization_config={
        "quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemm", "zero_point": True}), 1),
    "w4a16": (config("Qwen3MoeForCausalLM", "bfloat16", **WIDE, head_dim=16, num_experts=4, num_experts_per_tok=2,
                     moe_intermediate_size=32, norm_topk_prob=True, decoder_sparse_step=2, mlp_only_layers=[],
                     quantization_config=llm_compressor("pack-quantized", num_bits=4, strategy="group", group_size=32)), 1),
    "w4a16_zeros": (config("LlamaForCausalLM", "float32", **WIDE, quantization_config=llm_compressor(
        "pack-quantized", num_bits=4, strategy="group", group_size=32, symmetric=False)), 1),
    "w8a8": (config("LlamaForCausalLM", "float16", **WIDE, quantization_config=llm_compressor(
        "int-quantized", num_bits=8, strategy="channel")), 1),
}
# Their K and V need the scales that their checkpoints have for an fp8 cache.
WITH_KV_SCALES = {"fp8_tensor"}
# By how much a choice must be won, of the logits' root mean square (tokens) and absolutely (experts).
CLOSE = {"float32": 1e-3, "float16": 1e-3, "bfloat16": 0.03}


def close(c):
    return CLOSE["bfloat16" if is_latent(c) else c["torch_dtype"]]  # a latent cache is of bfloat16


def weights_of(name, c, random):
    """Returns (tensors to store, their float64 values)."""
    dtype, store = DTYPES[c["torch_dtype"]]
    tensors, values = {}, {}
    for tensor, shape in weight_shapes(c).items():
        weight = random_weight(random, c, tensor, shape)
        if (codes := quantized(c, tensor, weight, random)) is not None:
            tensors.update(codes[0])
            values[tensor] = codes[1]
            continue
        data, values[tensor] = store(weight)
        tensors[tensor] = (dtype, shape, data)
    if name in WITH_KV_SCALES:
        for layer in range(c["num_hidden_layers"]):
            spread_kv(tensors, values, layer)
    return tensors, values


def make(name, seed):
    c, shards = MODELS[name]
    random = np.random.default_rng(seed)
    tensors, values = weights_of(name, c, random)
    tokens = random.integers(0, VOCAB, TOKENS)
    margins = []
    logits = forward(c, values, tokens, margins)
    continued = greedy(c, values, tokens)
    if min(margins, default=1) < close(c) or not continued:
        return False
    print(f"{name}: seed {seed}, {len(continued)} tokens by greedy decoding")
    os.makedirs(name, exist_ok=True)
    write_json(os.path.join(name, "config.json"), c)
    write_weights(name, tensors, shards)
    write_json(os.path.join(name, "golden.json"), {"tokens": tokens.tolist(), "greedy": continued})
    logits.astype("<f8").tofile(os.path.join(name, "golden.f64"))
    if is_latent(c):
        rounded = forward(c | {"has_rounded_rows": True}, values, tokens)
        rounded.astype("<f8").tofile(os.path.join(name, "rounded.f64"))
    return True


if __name__ == "__main__":
    os.chdir(os.path.dirname(os.path.abspath(__file__)))
    for seed, name in enumerate(MODELS):
        if len(sys.argv) == 1 or name in sys.argv:
            while not make(name, seed):
                seed += 100
