#!/usr/bin/env python3
"""Writes a small model that always says the same: each token has one successor.

speaking_model.py DIRECTORY [hermes|mistral]

Behind <|say|> it says "Hello from the hive.", behind <|call|> it calls the tool get_weather twice. Its template ends with <|call|> when there
are tools and no result of one yet.
"""
import json
import pathlib
import struct
import sys

SIZE = 384  # hidden size and vocabulary: each token has a dimension of its own
LAYER = "model.layers.0."
SPECIAL = ["<|begin|>", "<|end|>", "<|start|>", "<|tools|>", "<|call|>", "<|say|>", "[TOOL_CALLS]"]
SAYING = ["Hello", " from", " the", " hive."]
CALLING = {
    "hermes": ["One moment.", "\n<tool_", "call>", '\n{"name": "get_weather", ', '"arguments": {"city": "Par', 'is"}}\n', "</tool_call>", "\n<tool",
               '_call>{"name": "get_weather", "arguments": ', '{"city": "R\u00f4me"}}', "</tool_c", "all>"],
    "mistral": ["One moment.", "[TOOL_CALLS]", '[{"name": "get_weather", ', '"arguments": {"city": "Par', 'is"}}, ',
                '{"name": "get_weather", "arguments": ', '{"city": "R\u00f4me"}}]'],
}
TEMPLATE = """{%- if tools %}<|tools|>{% for tool in tools %}{{ tool | tojson }}{% endfor %}{% endif %}
{%- for message in messages %}
{%- if message.role == 'villain' %}{{ raise_exception('villains are not served') }}{% endif %}<|start|>{{ message.role }}
{{ message.content }}
{%- for call in message.tool_calls or [] %}FORM{{ call.function | tojson }}{% endfor %}<|end|>
{% endfor %}
{%- if spin %}{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}{% endif %}
{%- if add_generation_prompt %}{{ '<|call|>' if tools and messages[-1].role != 'tool' else '<|say|>' }}{% endif %}"""


def byte_letters():
    """GPT-2's letters for bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    return {**{chr(b): b for b in printable}, **{chr(256 + i): b for i, b in enumerate(others)}}


def write_json(path, value):
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1))


def write_tensors(path, tensors):
    header, data = {}, b""
    for name, (shape, values) in tensors.items():
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    head = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(head)) + head + data)


def matrix(rows, columns, ones=()):
    values = bytearray(2 * rows * columns)
    for row, column in ones:
        struct.pack_into("<H", values, 2 * (row * columns + column), 0x3F80)
    return [rows, columns], bytes(values)


def main():
    directory = pathlib.Path(sys.argv[1])
    form = sys.argv[2] if len(sys.argv) > 2 else "hermes"
    directory.mkdir(parents=True, exist_ok=True)
    letters = byte_letters()
    pieces = [p for p in dict.fromkeys([*SAYING, *CALLING[form]]) if p not in SPECIAL]
    ids = {text: 256 + i for i, text in enumerate([*SPECIAL, *pieces])}
    end = ids["<|end|>"]

    successor = {}
    for chain in (["<|say|>", *SAYING, "<|end|>"], ["<|call|>", *CALLING[form], "<|end|>"]):
        for one, other in zip(chain, chain[1:]):
            successor[ids[one]] = ids[other]

    write_json(directory / "config.json", {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": SIZE, "hidden_size": SIZE,
        "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 64,
        "hidden_act": "silu", "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False, "bos_token_id": ids["<|begin|>"],
        "eos_token_id": end, "torch_dtype": "bfloat16"})
    added = [{"id": i, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": text in SPECIAL} for text, i in ids.items()]
    write_json(directory / "tokenizer.json", {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": letters, "merges": []}})
    write_json(directory / "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|begin|>", "eos_token": {"content": "<|end|>"},
        "chat_template": TEMPLATE.replace("FORM", "[TOOL_CALLS]" if form == "mistral" else "<tool_call>")})
    write_json(directory / "generation_config.json", {"eos_token_id": end, "do_sample": False, "temperature": 1.0})

    write_tensors(directory / "model.safetensors", {
        "model.embed_tokens.weight": matrix(SIZE, SIZE, ((i, i) for i in range(SIZE))),
        "lm_head.weight": matrix(SIZE, SIZE, ((successor.get(i, end), i) for i in range(SIZE))),
        # 8: all other tokens have the probability 0 (by 1 it would be one in a million, and requests sample).
        "model.norm.weight": ([SIZE], b"\x00\x41" * SIZE),
        LAYER + "input_layernorm.weight": ([SIZE], b"\x80\x3f" * SIZE),
        LAYER + "post_attention_layernorm.weight": ([SIZE], b"\x80\x3f" * SIZE),
        LAYER + "self_attn.q_proj.weight": matrix(384, SIZE), LAYER + "self_attn.k_proj.weight": matrix(128, SIZE),
        LAYER + "self_attn.v_proj.weight": matrix(128, SIZE), LAYER + "self_attn.o_proj.weight": matrix(SIZE, 384),
        LAYER + "mlp.gate_proj.weight": matrix(64, SIZE), LAYER + "mlp.up_proj.weight": matrix(64, SIZE),
        LAYER + "mlp.down_proj.weight": matrix(SIZE, 64)})


main()
