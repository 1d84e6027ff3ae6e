"""A random Llama, written as kvhive reads it (a directory of Hugging Face's layout) and as llama.cpp does (a GGUF file). The same numbers
lie in both, but for the order of the rows of q and k: GGUF has them as rotated pairs, side by side. Needs no packages.
"""
import array
import json
import pathlib
import random
import struct
from typing import NamedTuple

ROWS_AT_ONCE = 1024
GGUF_F32, GGUF_BF16 = 0, 30
GGUF_UINT32, GGUF_FLOAT32, GGUF_STRING = 4, 6, 8
GGUF_ALIGNMENT = 32


class Sizes(NamedTuple):
    layers: int = 16
    hidden: int = 2048
    heads: int = 16
    kv_heads: int = 8
    head_size: int = 128
    intermediate: int = 5632
    vocab: int = 32000

    def parameters(self):
        q, kv = self.heads * self.head_size, self.kv_heads * self.head_size
        return (2 * self.vocab + self.layers * (2 * q + 2 * kv + 3 * self.intermediate + 2) + 1) * self.hidden


class Tensor(NamedTuple):
    safetensors: str
    gguf: str
    rows: int
    columns: int
    heads: int = 0  # that are rotated
    norm: bool = False


def tensors(s):
    q, kv = s.heads * s.head_size, s.kv_heads * s.head_size
    yield Tensor("model.embed_tokens.weight", "token_embd.weight", s.vocab, s.hidden)
    yield Tensor("model.norm.weight", "output_norm.weight", 1, s.hidden, norm=True)
    yield Tensor("lm_head.weight", "output.weight", s.vocab, s.hidden)
    for layer in range(s.layers):
        ours, theirs = f"model.layers.{layer}.", f"blk.{layer}."
        yield Tensor(ours + "input_layernorm.weight", theirs + "attn_norm.weight", 1, s.hidden, norm=True)
        yield Tensor(ours + "self_attn.q_proj.weight", theirs + "attn_q.weight", q, s.hidden, heads=s.heads)
        yield Tensor(ours + "self_attn.k_proj.weight", theirs + "attn_k.weight", kv, s.hidden, heads=s.kv_heads)
        yield Tensor(ours + "self_attn.v_proj.weight", theirs + "attn_v.weight", kv, s.hidden)
        yield Tensor(ours + "self_attn.o_proj.weight", theirs + "attn_output.weight", s.hidden, q)
        yield Tensor(ours + "post_attention_layernorm.weight", theirs + "ffn_norm.weight", 1, s.hidden, norm=True)
        yield Tensor(ours + "mlp.gate_proj.weight", theirs + "ffn_gate.weight", s.intermediate, s.hidden)
        yield Tensor(ours + "mlp.up_proj.weight", theirs + "ffn_up.weight", s.intermediate, s.hidden)
        yield Tensor(ours + "mlp.down_proj.weight", theirs + "ffn_down.weight", s.hidden, s.intermediate)


def bf16(values):
    """The upper halves of float32."""
    floats = array.array("f", values).tobytes()
    halves = bytearray(len(floats) // 2)
    halves[0::2], halves[1::2] = floats[2::4], floats[3::4]
    return bytes(halves)


def float32(halves):
    floats = bytearray(2 * len(halves))
    floats[2::4], floats[3::4] = halves[0::2], halves[1::2]
    return bytes(floats)


class Weights:
    """Rows of a tensor. Each is a piece of a million random numbers from a place of its own, so that no two are alike."""

    def __init__(self):
        random.seed(1)
        self.weights = bf16(random.gauss(0, 0.02) for _ in range(1 << 20))
        self.norms = bf16(random.gauss(1, 0.1) for _ in range(1 << 16))

    def rows(self, tensor):
        pool = self.norms if tensor.norm else self.weights
        size = 2 * tensor.columns
        places = random.Random(tensor.safetensors)
        return [pool[at:at + size] for at in (2 * places.randrange((len(pool) - size) // 2) for _ in range(tensor.rows))]


def rotated_pairs(rows, heads):
    """Rows i and i + D/2 of a head, which rotate together, become rows 2i and 2i + 1."""
    size = len(rows) // heads
    return [rows[head * size + half * size // 2 + i] for head in range(heads) for i in range(size // 2) for half in range(2)]


def write_rows(file, rows):
    for at in range(0, len(rows), ROWS_AT_ONCE):
        file.write(b"".join(rows[at:at + ROWS_AT_ONCE]))


def write_directory(folder, s, weights):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": s.vocab, "hidden_size": s.hidden,
        "intermediate_size": s.intermediate, "num_hidden_layers": s.layers, "num_attention_heads": s.heads,
        "num_key_value_heads": s.kv_heads, "head_dim": s.head_size, "hidden_act": "silu", "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 1,
        "torch_dtype": "bfloat16"}))
    header, at = {}, 0
    for tensor in tensors(s):
        end = at + 2 * tensor.rows * tensor.columns
        shape = [tensor.columns] if tensor.norm else [tensor.rows, tensor.columns]
        header[tensor.safetensors] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % 64)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors(s):
            write_rows(file, weights.rows(tensor))


def gguf_string(text):
    return struct.pack("<Q", len(text)) + text.encode()


def write_gguf(path, s, weights):
    def uint32(value):
        return struct.pack("<II", GGUF_UINT32, value)

    def string(text):
        return struct.pack("<I", GGUF_STRING) + gguf_string(text)

    values = {
        "general.architecture": string("llama"), "general.name": string("random"), "general.alignment": uint32(GGUF_ALIGNMENT),
        "general.file_type": uint32(32),  # mostly bf16
        "tokenizer.ggml.model": string("no_vocab"), "llama.vocab_size": uint32(s.vocab), "llama.context_length": uint32(8192),
        "llama.embedding_length": uint32(s.hidden), "llama.block_count": uint32(s.layers),
        "llama.feed_forward_length": uint32(s.intermediate), "llama.attention.head_count": uint32(s.heads),
        "llama.attention.head_count_kv": uint32(s.kv_heads), "llama.attention.key_length": uint32(s.head_size),
        "llama.attention.value_length": uint32(s.head_size), "llama.rope.dimension_count": uint32(s.head_size),
        "llama.rope.freq_base": struct.pack("<If", GGUF_FLOAT32, 10000.0),
        "llama.attention.layer_norm_rms_epsilon": struct.pack("<If", GGUF_FLOAT32, 1e-5)}
    infos, at = [], 0
    for tensor in tensors(s):
        shape = [tensor.columns] if tensor.norm else [tensor.columns, tensor.rows]
        infos.append(gguf_string(tensor.gguf) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape,
                                                            GGUF_F32 if tensor.norm else GGUF_BF16, at))
        at += (4 if tensor.norm else 2) * tensor.rows * tensor.columns  # a multiple of the alignment, as all sizes are
        assert at % GGUF_ALIGNMENT == 0
    with open(path, "wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, len(infos), len(values)))
        file.write(b"".join(gguf_string(key) + value for key, value in values.items()) + b"".join(infos))
        file.write(b"\0" * (-file.tell() % GGUF_ALIGNMENT))
        for tensor in tensors(s):
            rows = weights.rows(tensor)
            if tensor.norm:
                rows = [float32(row) for row in rows]
            write_rows(file, rotated_pairs(rows, tensor.heads) if tensor.heads else rows)


def write_both(folder, sizes):
    """(directory for kvhive, file for llama.cpp), written if they are not there."""
    folder = pathlib.Path(folder)
    directory, gguf, done = folder / "model", folder / "model.gguf", folder / "sizes.json"
    if not done.is_file() or json.loads(done.read_text()) != list(sizes):
        done.unlink(missing_ok=True)
        weights = Weights()
        write_directory(directory, sizes, weights)
        write_gguf(gguf, sizes, weights)
        done.write_text(json.dumps(list(sizes)))
    return directory, gguf
