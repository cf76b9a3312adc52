"""The requests and answers of the chat endpoints, as OpenAI's API reference has them.

What this server cannot do is refused by name rather than ignored.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

MAX_MESSAGES = 512
_Stop = Annotated[str, StringConstraints(min_length=1, max_length=256)]
# What clients send by habit and what may be ignored without changing an answer's meaning.
_IGNORED = frozenset({"user", "metadata", "store", "service_tier", "safety_identifier"})


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid")


class TextPart(_Request):
    type: Literal["text"]
    text: str


class ChatMessage(_Request):
    """Text only; `content` may come in parts."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[TextPart], Field(min_length=1, max_length=64)]
    name: str | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


class StreamOptions(_Request):
    include_usage: bool = False
    include_obfuscation: bool = False


class ChatRequest(_Request):
    """`temperature` 0 is greedy. `top_k`, `min_p` and `repetition_penalty` are extensions.

    Without `temperature`, `top_p` or `repetition_penalty` the server's own defaults hold.
    """

    model: str = Field(max_length=256)
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES)]
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=0, le=1_000_000)
    min_p: float | None = Field(None, ge=0, lt=1)
    repetition_penalty: float | None = Field(None, gt=0, le=10)
    max_tokens: int | None = Field(None, ge=1, le=1_000_000)
    max_completion_tokens: int | None = Field(None, ge=1, le=1_000_000)
    stop: _Stop | Annotated[list[_Stop], Field(max_length=4)] | None = None
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    n: Literal[1] | None = 1
    frequency_penalty: Literal[0] | None = 0
    presence_penalty: Literal[0] | None = 0
    logprobs: Literal[False] | None = False

    @model_validator(mode="before")
    @classmethod
    def _without_ignored(cls, fields: Any) -> Any:
        if not isinstance(fields, dict):
            return fields
        return {name: value for name, value in fields.items() if name not in _IGNORED}

    @model_validator(mode="after")
    def _consistent(self) -> ChatRequest:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is for stream: true")
        if self.messages[-1].role != "user":
            raise ValueError("the last message must have the role user")
        return self

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or ())


class PromptDetails(BaseModel):
    cached_tokens: int


class TokenTimes(BaseModel):
    """Time per output token over one reply [ms]; null for fewer than two tokens."""

    p50: float | None
    p99: float | None
    max: float | None


class Speculation(BaseModel):
    """What drafts did: tokens fed before they were known, and those of them that were right.

    `acceptance` is accepted / drafted, `tokens_per_pass` (passes + accepted) / passes.
    """

    passes: int
    drafted: int
    accepted: int
    acceptance: float | None
    tokens_per_pass: float | None


class EngineUsage(BaseModel):
    """What the reply cost, by the engine's own clock, and the wait before it."""

    engine: str
    ttft_ms: float | None
    tpot_ms: TokenTimes
    tokens_per_s: float | None
    speculation: Speculation | None = None  # null where each token takes a pass of its own
    queue_ms: float


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    unpaused: EngineUsage


class AnswerMessage(BaseModel):
    role: Literal["assistant"]
    content: str
    refusal: None = None


class Choice(BaseModel):
    index: int
    message: AnswerMessage
    finish_reason: Literal["stop", "length"]
    logprobs: None = None


class ChatCompletion(BaseModel):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[Choice]
    usage: Usage


class ModelCard(BaseModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelList(BaseModel):
    object: Literal["list"]
    data: list[ModelCard]
