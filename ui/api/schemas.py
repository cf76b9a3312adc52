"""The requests and answers of the chat endpoints, as OpenAI's API reference has them.

What this server cannot do is refused by name rather than ignored.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    field_validator,
    model_validator,
)

from ui.api.only import Only

MAX_MESSAGES = 512
ONE, SEVERAL = "<one>", "<several>"  # branches, which are no part of a request's names
_Stop = Annotated[str, StringConstraints(min_length=1, max_length=256)]
# What clients send by habit and what may be ignored without changing an answer's meaning.
_IGNORED = frozenset(
    {"user", "metadata", "store", "service_tier", "safety_identifier", "parallel_tool_calls",
     "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"}
)  # fmt: skip
_NO_TOOLS = "tools are not called here"
_NO_SPEECH = "the answer is text; /v1/audio/speech makes speech of it"


def _branch(value: Any) -> str | None:
    return ONE if isinstance(value, str) else SEVERAL if isinstance(value, list) else None


def _text_or_list(what: str) -> Discriminator:
    """Decides by what came, so that a fault is of that branch alone; else it must be `what`."""
    return Discriminator(_branch, custom_error_type="branch", custom_error_message=what)


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid")


class TextPart(_Request):
    type: Literal["text"]
    text: str


_Parts = Annotated[list[TextPart], Field(min_length=1, max_length=64)]


class ChatMessage(_Request):
    """Text only; `content` may come in parts. The rest is what an answer has, sent back."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[
        Annotated[str, Tag(ONE)] | Annotated[_Parts, Tag(SEVERAL)],
        _text_or_list("must be a text or a list of text parts"),
    ]
    name: str | None = None
    refusal: str | None = None
    annotations: Annotated[Any, Only(([],), "annotations are not read here")] = None
    audio: Annotated[Any, Only((), "text is all that is read here")] = None
    tool_calls: Annotated[Any, Only(([],), _NO_TOOLS)] = None
    function_call: Annotated[Any, Only((), _NO_TOOLS)] = None

    @field_validator("content")
    @classmethod
    def _whole(cls, content: str | list[TextPart]) -> str | list[TextPart]:
        parts = [content] if isinstance(content, str) else [part.text for part in content]
        if any("\ud800" <= character <= "\udfff" for part in parts for character in part):
            raise ValueError("the text is not valid Unicode")
        return content

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
    stop: (
        Annotated[
            Annotated[_Stop, Tag(ONE)] | Annotated[list[_Stop], Field(max_length=4), Tag(SEVERAL)],
            _text_or_list("must be a text or a list of up to four"),
        ]
        | None
    ) = None
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    n: Annotated[Any, Only((1,), "one answer is given to a request")] = 1
    frequency_penalty: Annotated[Any, Only((0,), "use repetition_penalty instead")] = 0
    presence_penalty: Annotated[Any, Only((0,), "use repetition_penalty instead")] = 0
    logit_bias: Annotated[Any, Only(({},), "tokens cannot be favoured here")] = None
    logprobs: Annotated[Any, Only((False,), "log probabilities are not told here")] = False
    top_logprobs: Annotated[Any, Only((0,), "log probabilities are not told here")] = None
    response_format: Annotated[
        Any, Only(({"type": "text"},), 'the only format is {"type": "text"}: JSON is not enforced')
    ] = None
    modalities: Annotated[Any, Only((["text"],), _NO_SPEECH)] = None
    audio: Annotated[Any, Only((), _NO_SPEECH)] = None
    tools: Annotated[Any, Only(([],), _NO_TOOLS)] = None
    tool_choice: Annotated[Any, Only(("none", "auto"), _NO_TOOLS)] = None
    functions: Annotated[Any, Only(([],), _NO_TOOLS)] = None
    function_call: Annotated[Any, Only(("none", "auto"), _NO_TOOLS)] = None
    moderation: Annotated[Any, Only((), "nothing is moderated here")] = None
    prediction: Annotated[Any, Only((), "predicted answers are not used here")] = None
    web_search_options: Annotated[Any, Only((), "nothing is searched here")] = None
    reasoning_effort: Annotated[Any, Only(("none",), "thinking is not offered by the API")] = None
    verbosity: Annotated[Any, Only(("medium",), "say in the prompt how long it shall be")] = None

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
