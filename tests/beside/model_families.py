#!/usr/bin/env python3
"""Each model family beside transformers: the same weights, the same tokens, the logits of every position compared.

Two kinds of models: random ones that transformers itself makes and writes (so its config.json of today is read, too), in float32 and
bfloat16; and those of tests/models/golden, whose config.json is as published models have it (so float64's logits there are shown to be
transformers' ones). Quantized ones are given to transformers as the values that codes and scales stand for.

RECORD=1 writes the figures to model_families.json, which docs/MODELS.md repeats.
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import torch
import transformers
from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32
from safetensors.torch import load_file, save_file

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "build/bin/kvhive_model_logits"
MADE = ROOT / "build/beside/models"
GOLDEN = ROOT / "tests/models/golden"
RECORD = ROOT / "tests/beside/model_families.json"
VOCAB, TOKENS, GREEDY = 320, 200, 16
# The type of the weights; transformers computes in float32. Errors are root mean squares, relative to the logits'. float32: rounding of
# sums. bfloat16: kvhive rounds what it multiplies with such weights, half a percent over two layers, and these have up to seven; where
# that turns a router's choice of an expert, more.
MOST = {"float32": 2e-5, "bfloat16": 2e-2}
MOST_WITH_EXPERTS = {"float32": 2e-5, "bfloat16": 5e-2}
# A latent cache is of bfloat16 whatever the weights are. So transformers rounds latents, too, where kvhive stores them; a few are rounded the
# other way. What that rounding does by itself to transformers' logits is a figure of its own.
# A latent model's router narrows its choice by groups, and shared experts and a scale multiply what a turned choice does: with weights of
# bfloat16 a few tokens are far off. So there the bound is for the median of the positions. With weights of float32 one in 200 may be, where a
# latent that is rounded the other way turns a choice: the bound is for 99 of 100 positions, each by itself. The median also with Llama 4, whose experts' inputs
# are weighted each by itself: the second one counts as much as the first.
MOST_WITH_LATENTS = {"float32": 2e-3, "bfloat16": 5e-2}
failed = 0
figures = []


def check(what, fine, seen=""):
    global failed
    failed += not fine
    print(f"{'ok    ' if fine else 'FAILED'} {what}{'' if fine else f': {seen}'}", flush=True)


def ours(folder, tokens, greedy):
    """(logits [tokens, vocab], tokens that continue them), with KV of float32, or latent rows of bfloat16."""
    kv = "bfloat16" if "kv_lora_rank" in json.loads((pathlib.Path(folder) / "config.json").read_text()) else "float32"
    done = subprocess.run([PROGRAM, folder, str(greedy), kv], input=" ".join(map(str, tokens)).encode(), capture_output=True)
    if done.returncode != 0:
        raise SystemExit(f"{folder}: {done.stderr.decode()}")
    floats = len(done.stdout) // 4 - greedy
    return (np.frombuffer(done.stdout, np.float32, floats).reshape(len(tokens), -1),
            list(np.frombuffer(done.stdout, np.int32, greedy, floats * 4)))


def theirs(model, tokens, greedy):
    """The same from transformers; also by how much each of the tokens won, of the logits' rms."""
    with torch.no_grad():
        logits = model(torch.tensor([tokens])).logits[0].float().numpy()
        continued, margins, fed = [], [], list(tokens)
        for _ in range(greedy):
            last = model(torch.tensor([fed])).logits[0, -1].float().numpy()
            second, first = np.sort(last)[-2:]
            margins.append((first - second) / np.sqrt(np.mean(last**2)))
            continued.append(int(last.argmax()))
            fed.append(continued[-1])
    return logits, continued, margins


def of_rounded_latents(model):
    """The model with latents rounded to bfloat16 as they come: a layer's normed latents, and its keys when they are rotated."""
    module = sys.modules[type(model).__module__]
    rotated = module.apply_rotary_emb
    rounded = lambda x: x.to(torch.bfloat16).to(x.dtype)

    def with_rounded_keys(queries, keys, angles):
        queries, keys = rotated(queries, keys, angles)
        return queries, rounded(keys)

    module.apply_rotary_emb = with_rounded_keys
    hooks = [layer.self_attn.kv_a_layernorm.register_forward_hook(lambda norm, given, out: rounded(out)) for layer in model.model.layers]

    def undo():
        module.apply_rotary_emb = rotated
        for hook in hooks:
            hook.remove()
    return undo


def compare(name, dtype, folder, model, tokens):
    is_latent, has_experts = "DeepSeek" in name, "MoE" in name or "DeepSeek" in name
    most = (MOST_WITH_LATENTS if is_latent else MOST_WITH_EXPERTS if has_experts else MOST)[dtype]
    if is_latent:
        plain, _, _ = theirs(model, tokens, 0)
        undo = of_rounded_latents(model)
    want, want_tokens, margins = theirs(model, tokens, GREEDY)
    if is_latent:
        undo()
    got, got_tokens = ours(folder, tokens, GREEDY)
    error = float(np.sqrt(np.mean((got - want)**2) / np.mean(want**2)))
    # From a choice on that rounding could turn, the texts are different ones. In the prompt, every position is a choice of its own.
    written = next((i for i, margin in enumerate(margins) if margin < 4 * most), GREEDY)
    second, first = np.sort(want, axis=-1)[:, -2:].T
    sure = first - second > 4 * most * np.sqrt(np.mean(want**2, axis=-1))
    turns_much = (is_latent or "Llama 4" in name) and dtype == "bfloat16"
    of_positions = np.sqrt(np.mean((got - want)**2, axis=-1) / np.mean(want**2, axis=-1))
    median = float(np.median(of_positions))
    bounded = median if turns_much else float(np.quantile(of_positions, 0.99)) if is_latent else error
    check(f"{name} in {dtype}: logits", bounded < most, bounded)
    # An expert that rounding put in another's place makes one token's logits others.
    of_sure = 1 if not has_experts or dtype == "float32" else 0.95 if turns_much else 0.98
    same = (want.argmax(-1) == got.argmax(-1))[sure]
    print(f"       {name:34} {dtype:9} error {error:.1e}; {same.sum()} of {sure.sum()} sure positions (of {len(tokens)}) have the same most likely token, "
          f"{written} tokens written")
    check(f"{name} in {dtype}: most likely tokens", same.mean() >= of_sure, same.mean())
    check(f"{name} in {dtype}: greedy tokens", want_tokens[:written] == got_tokens[:written], (want_tokens, got_tokens))
    figures.append({"model": name, "dtype": dtype, "error": float(f"{error:.1e}"), "same": int(same.sum()), "sure": int(sure.sum()), "written": written})
    if turns_much:
        figures[-1] |= {"median": float(f"{median:.1e}")}
    if is_latent:
        rows = float(np.sqrt(np.mean((plain - want)**2) / np.mean(plain**2)))
        print(f"       {name:34} {dtype:9} rounding latents changes transformers' logits by {rows:.1e}")
        figures[-1] |= {"median": float(f"{median:.1e}"), "rounded_latents": float(f"{rows:.1e}")}


# ---- models that transformers makes ----

SMALL = dict(vocab_size=VOCAB, hidden_size=96, intermediate_size=160, num_hidden_layers=4, num_attention_heads=6, num_key_value_heads=2,
             max_position_embeddings=512, bos_token_id=1, eos_token_id=2, pad_token_id=0)
GEMMA = SMALL | dict(head_dim=32, sliding_window=48, query_pre_attn_scalar=40, num_hidden_layers=7)
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 128}
LATENT = SMALL | dict(num_key_value_heads=6, kv_lora_rank=512, qk_rope_head_dim=64, qk_nope_head_dim=32, v_head_dim=24,
                      moe_intermediate_size=48, num_experts_per_tok=3)
CHUNKED = SMALL | dict(head_dim=16, intermediate_size=64, intermediate_size_mlp=160, attention_chunk_size=48, num_local_experts=6,
                       floor_scale=32, attn_scale=0.2)
t = transformers
FAMILIES = {
    "Llama": (t.LlamaForCausalLM, t.LlamaConfig(**SMALL)),
    "Llama, rope llama3": (t.LlamaForCausalLM, t.LlamaConfig(**SMALL, tie_word_embeddings=True, rope_parameters={
        "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 128})),
    "Llama, rope linear": (t.LlamaForCausalLM, t.LlamaConfig(**SMALL, rope_parameters={
        "rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0})),
    "Llama, rope yarn": (t.LlamaForCausalLM, t.LlamaConfig(**SMALL, rope_parameters=YARN)),
    "Qwen2, rope yarn": (t.Qwen2ForCausalLM, t.Qwen2Config(**SMALL, rope_parameters=YARN | {
        "beta_fast": 16.0, "beta_slow": 2.0, "mscale": 0.7, "mscale_all_dim": 1.5, "truncate": False})),
    "Mistral, window": (t.MistralForCausalLM, t.MistralConfig(**SMALL, head_dim=16, sliding_window=40)),
    "Qwen2": (t.Qwen2ForCausalLM, t.Qwen2Config(**SMALL)),
    "Qwen2, windows from layer 2 on": (t.Qwen2ForCausalLM, t.Qwen2Config(**SMALL, use_sliding_window=True, sliding_window=40,
                                                                         max_window_layers=2)),
    "Qwen3": (t.Qwen3ForCausalLM, t.Qwen3Config(**SMALL, head_dim=32)),
    "Qwen3-MoE": (t.Qwen3MoeForCausalLM, t.Qwen3MoeConfig(**SMALL, head_dim=32, num_experts=12, num_experts_per_tok=3,
                                                          moe_intermediate_size=48, norm_topk_prob=True, mlp_only_layers=[1])),
    "Qwen3-MoE, not normed, every other": (t.Qwen3MoeForCausalLM, t.Qwen3MoeConfig(
        **SMALL, head_dim=32, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=48, norm_topk_prob=False,
        decoder_sparse_step=2)),
    "Gemma 2": (t.Gemma2ForCausalLM, t.Gemma2Config(**GEMMA, attn_logit_softcapping=4.0, final_logit_softcapping=3.0)),
    "Gemma 3": (t.Gemma3ForCausalLM, t.Gemma3TextConfig(**GEMMA, sliding_window_pattern=3, rope_parameters={
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}})),
    "DeepSeek-V2": (t.DeepseekV2ForCausalLM, t.DeepseekV2Config(
        **LATENT, q_lora_rank=40, first_k_dense_replace=1, n_routed_experts=12, n_shared_experts=2, routed_scaling_factor=1.5,
        topk_method="group_limited_greedy", n_group=4, topk_group=2, rope_parameters=YARN | {"mscale": 0.707, "mscale_all_dim": 0.707})),
    "DeepSeek-V2-Lite": (t.DeepseekV2ForCausalLM, t.DeepseekV2Config(
        **LATENT, q_lora_rank=None, first_k_dense_replace=1, n_routed_experts=8, n_shared_experts=1, topk_method="greedy")),
    "Gemma 3, the text of a model that takes images": (t.Gemma3ForConditionalGeneration, t.Gemma3Config(
        text_config=t.Gemma3TextConfig(**GEMMA, sliding_window_pattern=3).to_dict(),
        vision_config=dict(hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, image_size=28,
                           patch_size=14), mm_tokens_per_image=4, image_token_index=VOCAB - 1, boi_token_index=VOCAB - 2,
        eoi_token_index=VOCAB - 3)),
    "Llama 4, MoE": (t.Llama4ForCausalLM, t.Llama4TextConfig(**CHUNKED, num_experts_per_tok=1, interleave_moe_layer_step=2,
                                                             rope_parameters={
        "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 128})),
    "Llama 4, MoE, two experts, no norms": (t.Llama4ForCausalLM, t.Llama4TextConfig(
        **CHUNKED, num_experts_per_tok=2, use_qk_norm=False, no_rope_layers=[0, 1, 1, 0], attn_temperature_tuning=False)),
}


def spread(model, seed):
    """Random weights of the size that trained ones have for these widths; norms away from their neutral value."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("norm.weight"):
                weight.add_(0.2 * torch.randn_like(weight))
            elif weight.dim() == 1:
                weight.copy_(0.3 * torch.randn_like(weight))
            elif "embed_tokens" in name and "Gemma" in type(model).__name__:
                weight.copy_(torch.randn_like(weight) / weight.shape[-1]**0.5)
            else:
                weight.copy_(1.3 * torch.randn_like(weight) / weight.shape[-1]**0.5)


def in_float32(kind, folder, dtype):
    """The model, computed in float32. Gemma's scale of embeddings is rounded as its weights are, as it is when they are computed with."""
    model = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    embedding = getattr(model.model, "language_model", model.model).embed_tokens
    if hasattr(embedding, "embed_scale"):
        embedding.embed_scale = embedding.embed_scale.to(getattr(torch, dtype)).float()
    return model


def made_by_transformers():
    tokens = np.random.default_rng(1).integers(3, VOCAB, TOKENS).tolist()
    for number, (name, (kind, config)) in enumerate(FAMILIES.items()):
        for dtype in ("float32", "bfloat16"):
            folder = MADE / f"{number}-{dtype}"
            shutil.rmtree(folder, ignore_errors=True)
            model = kind(config)
            spread(model, number)
            model.to(getattr(torch, dtype)).save_pretrained(folder)
            compare(name, dtype, folder, in_float32(kind, folder, dtype), tokens)


# ---- the models that `make test` uses ----

def plain_copy(source, folder):
    """The model with the values instead of codes and scales; in float32, if it was quantized."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    config = json.loads((source / "config.json").read_text())
    tensors = {}
    for file in sorted(source.glob("*.safetensors")):
        tensors |= load_file(file)
    if (how := config.pop("quantization_config", None)) is not None:
        config["torch_dtype"] = "float32"
        of_integers(tensors, how)
        for name in [name for name in tensors if "_scale" in name]:
            scale = tensors.pop(name)
            weight = name.removesuffix("_inv").removesuffix("_scale")
            if weight not in tensors:
                continue  # k_scale and v_scale: of a cache of fp8, which transformers has not
            codes = tensors[weight].float()
            if scale.dim() == 2:  # of blocks, or of rows
                blocks = [-(-codes.shape[i] // scale.shape[i]) for i in range(2)]
                if name.endswith("_inv"):
                    blocks = config_of_blocks(source)
                scale = scale.repeat_interleave(blocks[0], 0).repeat_interleave(blocks[1], 1)[:codes.shape[0], :codes.shape[1]]
            tensors[weight] = codes * scale
        tensors = {name: value.float() for name, value in tensors.items()}
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def unpacked(words, bits, order=range(8)):
    """Codes [rows, n * codes of a word] of words [rows, n]."""
    in_word = 32 // bits
    codes = torch.stack([words >> bits * i & 2**bits - 1 for i in range(in_word)], -1)
    return codes[..., [list(order).index(i) for i in range(in_word)]].flatten(1)


def of_integers(tensors, how):
    """Integers of four and eight bits become values in place. Those of compressed-tensors are unpacked by that package itself; the others as
    GPTQModel's and AutoAWQ's own layers do it (dequantize_weight, dequantize_gemm)."""
    for name in [name.removesuffix(".qweight") for name in tensors if name.endswith(".qweight")]:
        words, zeros, scales = (tensors.pop(f"{name}.{part}") for part in ("qweight", "qzeros", "scales"))
        if how["quant_method"] == "awq":
            codes, zeros = (unpacked(part, 4, [0, 2, 4, 6, 1, 3, 5, 7]) for part in (words, zeros))
            groups = torch.arange(len(codes)) // how["group_size"]
        else:
            codes, zeros = unpacked(words.T, how["bits"]).T, unpacked(zeros, how["bits"])
            if how.get("checkpoint_format") != "gptq_v2":
                zeros = zeros + 1 & 2**how["bits"] - 1
            groups = tensors.pop(f"{name}.g_idx")
        tensors[f"{name}.weight"] = ((codes - zeros[groups]) * scales[groups].float()).T.contiguous()
    for name in [name.removesuffix("_packed") for name in tensors if name.endswith(".weight_packed")]:
        bits = how["config_groups"]["group_0"]["weights"]["num_bits"]
        shape, scales = torch.Size(tensors.pop(name + "_shape")), tensors.pop(name + "_scale").float()
        codes, groups = unpack_from_int32(tensors.pop(name + "_packed"), bits, shape), shape[1] // scales.shape[1]
        zeros = tensors.pop(name + "_zero_point", None)
        if zeros is not None:
            zeros = unpack_from_int32(zeros, bits, torch.Size((shape[0], scales.shape[1])), packed_dim=0)
            codes = codes - zeros.repeat_interleave(groups, 1).float()
        tensors[name] = codes * scales.repeat_interleave(groups, 1)


def config_of_blocks(source):
    return json.loads((source / "config.json").read_text())["quantization_config"]["weight_block_size"]


def of_the_tests():
    for source in sorted(path.parent for path in GOLDEN.glob("*/golden.json")):
        golden = json.loads((source / "golden.json").read_text())
        logits = np.fromfile(source / "golden.f64").reshape(len(golden["tokens"]), -1)
        stored = json.loads((source / "config.json").read_text())["torch_dtype"]
        kind = getattr(transformers, json.loads((source / "config.json").read_text())["architectures"][0])
        model = in_float32(kind, plain_copy(source, MADE / source.name), stored)
        want, _, _ = theirs(model, golden["tokens"], 0)
        error = float(np.sqrt(np.mean((want - logits)**2) / np.mean(logits**2)))
        print(f"       {'golden ' + source.name:34} {'float64':9} error {error:.1e}")
        check(f"the golden logits of {source.name} are transformers'", error < MOST["float32"], error)
        figures.append({"model": f"golden {source.name}", "dtype": "float64", "error": float(f"{error:.1e}")})


torch.set_num_threads(2)
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
made_by_transformers()
of_the_tests()
if os.environ.get("RECORD"):
    record = {"transformers": transformers.__version__, "torch": torch.__version__.split("+")[0], "figures": figures}
    RECORD.write_text(json.dumps(record, indent=1) + "\n")
print(f"{failed} of the comparisons failed" if failed else "all as in transformers")
sys.exit(failed > 0)
