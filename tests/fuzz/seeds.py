#!/usr/bin/env python3
"""Makes the first inputs for the fuzz targets: small, valid, each with another feature."""
import base64
import io
import json
import pathlib
import struct
import sys
import zipfile

demo, corpus = map(pathlib.Path, sys.argv[1:])


def seed(target, name, data):
    (corpus / target).mkdir(parents=True, exist_ok=True)
    (corpus / target / f"seed-{name}").write_bytes(data if isinstance(data, bytes) else data.encode())


seed("options", "all", 'model = "m"\nblock-size = 16\nnum-gpu-blocks-override = 100\nwatermark = 0.01\n'
     'enable-prefix-caching = true\nkv-cache-memory-bytes = "1G"\nswap-space = 0.5\nseed = 1\n'
     'scheduling-policy = "priority"\npreemption-mode = "swap"\nkv-cache-dtype = "auto"\n')
seed("options", "domains", 'model = "m"\nsharing = "listed"\nscrub = "never"\nsocket-access = "@kv"\n'
     '[domains]\nteam = ["alice", 1001, "@staff"]\nbatch = "bob"\n')

# Bytes of fuzz_connections.cpp: sender, who or what; then whether more comes in one go.
stranger, in_one_go, served = 1, 1, 0
for kind in range(13):  # a stranger's client hello with one descriptor of this kind, twice in one go
    hello = bytes([0, 4, 2, 1, kind])
    seed("connections", f"descriptor-{kind}", bytes([0, stranger, served]) + hello + bytes([in_one_go]) + hello + bytes(
        [served, 0, 3, served, 0, 0, served]))
seed("connections", "plain", bytes([0, stranger, served, 0, 4, 2, 0, served, 0, 3, served, 0, 2, served, 0, 0, served]))
seed("connections", "silent", b"".join(bytes([i, stranger, served]) for i in range(9)))
seed("connections", "inspector", bytes([0, 0, served, 0, 4, 5, 2, 7, 3, served, 0, 3, served]))

# Bytes of fuzz_http.cpp: where the request is cut in two, then the request.
def request(path, body, headers=""):
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{headers}Content-Length: {len(body)}\r\n\r\n{body}"


completion = {"prompt": ["a", "b"], "max_tokens": 4, "n": 2, "stop": ["x"], "stop_token_ids": [1], "temperature": 0.5,
              "top_p": 0.9, "top_k": 3, "seed": -1, "logprobs": 2, "stream": True, "stream_options": {"include_usage": True},
              "cache_salt": "s", "logit_bias": {}, "unknown": None}
chat = {"messages": [{"role": "user", "content": "a"}], "tools": [{"type": "function", "function": {"name": "f"}}],
        "tool_choice": "auto", "logprobs": True, "top_logprobs": 2, "max_completion_tokens": 3, "documents": []}
trace = "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\nAuthorization: Bearer key\r\n"
seed("http", "completion", struct.pack("<H", 40) + request("/v1/completions?s", json.dumps(completion), trace).encode())
seed("http", "chat", struct.pack("<H", 0) + request("/v1/chat/completions", json.dumps(chat)).encode())
tensors = [json.loads(line)["file"] for line in
           (pathlib.Path(__file__).resolve().parents[1] / "serve/torch_tensors.jsonl").read_text().splitlines()]
seed("http", "embeds", struct.pack("<H", 40) + request("/v1/completions", json.dumps(
    {"prompt": "", "prompt_embeds": [tensors[0]], "max_tokens": 1})).encode())
seed("http", "two", struct.pack("<H", 200) + (request("/a", '{"prompt": [1, 2]}') + request("/b?s", "{")).encode())
seed("http", "chunked", struct.pack("<H", 70) + (
    "POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n"
    "5;a=b\r\n{\"n\":\r\n2\r\n3}\r\n0\r\n\r\n").encode())
seed("http", "host", struct.pack("<H", 20) + b"GET / HTTP/1.1\r\nHost: [::1]:80\r\nhost: evil.b.\r\n\r\n")
seed("http", "old", struct.pack("<H", 9) + b"GET /?s HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")

config = json.loads((demo / "config.json").read_text())
seed("model_config", "demo", json.dumps(config))
for name, architecture in [("qwen2", "Qwen2ForCausalLM"), ("qwen3", "Qwen3ForCausalLM"), ("mistral", "MistralForCausalLM")]:
    seed("model_config", name, json.dumps(config | {"architectures": [architecture], "model_type": name}))
for golden in sorted((pathlib.Path(__file__).resolve().parents[1] / "models/golden").glob("*/config.json")):
    seed("model_config", golden.parent.name, golden.read_text())
seed("model_config", "rope", json.dumps(config | {"rope_scaling": {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192}}))

header = json.dumps({"__metadata__": {"format": "pt"},
                     "a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
                     "b": {"dtype": "BF16", "shape": [3], "data_offsets": [16, 22]}}).encode()
seed("safetensors", "two", struct.pack("<Q", len(header)) + header + bytes(22))
seed("safetensors", "none", struct.pack("<Q", 2) + b"{}")

for number, tensor in enumerate(tensors):
    file = base64.b64decode(tensor)
    seed("torch_tensor", f"archive-{number}", file)
    if zipfile.is_zipfile(io.BytesIO(file)):
        seed("torch_tensor", f"pickle-{number}", zipfile.ZipFile(io.BytesIO(file)).read("archive/data.pkl"))

tokenizer = json.loads((demo / "tokenizer.json").read_text())
model = tokenizer["model"]
kept = {token: number for token, number in model["vocab"].items() if number < 300}
merges = [m for m in model["merges"]
          if all(part in kept for part in (m.split(" ") if isinstance(m, str) else m))
          and "".join(m.split(" ") if isinstance(m, str) else m) in kept]
tokenizer["model"] = model | {"vocab": kept, "merges": merges}
tokenizer["added_tokens"] = [t for t in tokenizer.get("added_tokens", []) if t["id"] < 300]
seed("tokenizer", "demo", json.dumps(tokenizer) + "\0In the beginning, 12 days\n")
seed("tokenizer", "sp", json.dumps({
    "added_tokens": [{"id": 0, "content": "<s>", "special": True}],
    "normalizer": {"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "\u2581"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]},
    "pre_tokenizer": None,
    "model": {"type": "BPE", "vocab": {"<s>": 0, "<0x41>": 1, "a": 2, "\u2581": 3, "\u2581a": 4},
              "merges": ["\u2581 a"], "byte_fallback": True, "unk_token": "<s>"}}) + "\0a a")
