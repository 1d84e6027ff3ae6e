"""Client of kvhive, one KV cache per host."""

from typing import Iterator, Literal, Mapping, Optional, Sequence, Union

__version__: str

class Error(RuntimeError):
    """What went wrong in one line; `code` is its kind, such as 'not_running'. If that is
    'overloaded', `retry_after` says in how many seconds to try again; None = nobody knows."""

    code: str
    retry_after: Optional[float]

class TokenLogprob:
    token: int
    logprob: float

class Token:
    """A generated token."""

    token: int
    logprob: float
    top: list[TokenLogprob]

class PromptToken:
    """A token of a scored prompt."""

    token: int
    logprob: float
    rank: int
    top: list[TokenLogprob]

class Progress:
    """What is new about a request."""

    text: str
    tokens: list[Token]
    prompt: list[PromptToken]
    prompt_tokens: int
    cached_tokens: int
    preemptions: int
    engine: Optional[int]
    finish_reason: Optional[Literal["stop", "length", "abort"]]

class Room:
    """Whether a prompt finds room."""

    fit: Literal["ok", "later", "never"]
    prompt_tokens: int
    cached_tokens: int
    needed_blocks: int
    available_blocks: int
    text: str

class Stream(Iterator[Progress]):
    """Iterates over a request's Progress; comes from Client.generate()."""

    def __iter__(self) -> Stream: ...
    def __next__(self) -> Progress: ...
    def abort(self) -> None: ...
    def result(self) -> Progress: ...

class Client:
    """A connection to a running kvhived. One Client is for one thread."""

    def __init__(
        self,
        socket: Optional[str] = None,
        *,
        engine: Optional[int] = None,
        channel_bytes: int = 0,
        connect_timeout: float = 10.0,
        domain: Optional[str] = None,
        model: Optional[str] = None,
    ) -> None: ...
    def generate(
        self,
        prompt: Union[str, Sequence[int]],
        *,
        max_tokens: int = 16,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        seed: Optional[int] = None,
        logprobs: int = 0,
        ignore_eos: bool = False,
        priority: int = 0,
        stop: Sequence[str] = (),
        stop_token_ids: Sequence[int] = (),
        cache_salt: Optional[str] = None,
        adapter: Optional[str] = None,
        prompt_logprobs: Optional[int] = None,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        repetition_penalty: float = 1.0,
        min_tokens: int = 0,
        logit_bias: Optional[Mapping[int, float]] = None,
        allowed_token_ids: Optional[Sequence[int]] = None,
        bad_words: Sequence[str] = (),
        include_stop: bool = False,
        will_be_forked: bool = False,
    ) -> Stream: ...
    def ask(
        self,
        prompt: Union[str, Sequence[int]],
        *,
        cache_salt: Optional[str] = None,
        adapter: Optional[str] = None,
    ) -> Room: ...
    @property
    def serving_engine(self) -> Optional[int]: ...
    def close(self) -> None: ...
    def __enter__(self) -> Client: ...
    def __exit__(self, *exception: object) -> None: ...
