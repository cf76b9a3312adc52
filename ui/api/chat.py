"""/v1/chat/completions, whole or as a stream of server-sent events."""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request
from fastapi.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from engine.errors import PromptTooLong
from engine.metrics import ReplyMetrics
from engine.sampling import SamplingParams
from ui.api.errors import APIError, error_body
from ui.api.jobs import ClientGone, Job, Waiting
from ui.api.models import engine_of
from ui.api.schemas import ChatCompletion, ChatRequest
from ui.api.state import APIState, State, Visitor

MAX_TOKENS = 1024  # of a reply whose request does not say; the context may end it earlier

router = APIRouter()
EngineHeader = Annotated[str | None, Header(alias="X-Unpaused-Engine", max_length=64)]


@dataclass(frozen=True)
class Answered:
    """The end of a reply."""

    metrics: ReplyMetrics
    finish_reason: str
    queue_ms: float

    def usage(self) -> dict[str, Any]:
        """OpenAI's usage, and in `unpaused` what a token cost."""
        metrics, figures = self.metrics, self.metrics.as_dict()
        return {
            "prompt_tokens": metrics.prompt_tokens,
            "completion_tokens": metrics.tokens,
            "total_tokens": metrics.prompt_tokens + metrics.tokens,
            "prompt_tokens_details": {"cached_tokens": metrics.cached_tokens},
            "unpaused": {
                **{name: figures[name] for name in ("engine", "ttft_ms", "tpot_ms")},
                **{name: figures[name] for name in ("tokens_per_s", "speculation")},
                "queue_ms": round(self.queue_ms, 3),
            },
        }


@router.post(
    "/chat/completions",
    response_model=ChatCompletion,
    responses={200: {"content": {"text/event-stream": {}}}},
)
async def complete(
    body: ChatRequest,
    request: Request,
    state: State,
    visitor: Visitor,
    engine: EngineHeader = None,
) -> Response | dict[str, Any]:
    """Answer the last message. The stream tells of a wait for the engine in its comments."""
    name = engine_of(state.runtime, body.model, engine)
    params = sampling_of(body, state.runtime.services.params)
    asked = time.monotonic()
    job = Job(
        state.runtime, visitor, "chat", lambda job: _answer(job, state, visitor, body, name, params)
    )
    head = {
        "id": f"chatcmpl-{secrets.token_hex(12)}",
        "created": int(time.time()),
        "model": f"{state.runtime.services.model_name}:{name}",
    }
    results = _timed(job.results(request), asked)
    if body.stream:
        # A fault that is there at once is told by its status; a later one, inside the stream.
        first = await anext(results, None)
        usage = body.stream_options is not None and body.stream_options.include_usage
        return EventStream(_events(first, results, head, usage), job)
    return await _whole(results, head)


def sampling_of(body: ChatRequest, default: SamplingParams) -> SamplingParams:
    """The request's sampling; without a seed one is drawn where it matters."""
    given = {
        name: getattr(body, name)
        for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
        if getattr(body, name) is not None
    }
    max_tokens = body.max_completion_tokens or body.max_tokens or MAX_TOKENS
    seed = secrets.randbits(63) if body.seed is None else body.seed % 2**64
    return replace(default, **given, max_tokens=max_tokens, seed=seed)


def _answer(
    job: Job, state: APIState, visitor: str, body: ChatRequest, name: str, params: SamplingParams
) -> Iterator[object]:
    """Text as it becomes certain, then `Answered`. Runs with the gate held."""
    began = time.monotonic()
    conversation = state.conversation(visitor)
    *before, last = body.messages
    conversation.messages = [
        {"role": _ROLES.get(message.role, message.role), "content": message.text}
        for message in before
    ]
    try:
        reply = conversation.reply(
            state.runtime.engine(name), last.text, params, body.stops, trims=False
        )
    except PromptTooLong as error:
        raise APIError(str(error), 400, "messages", "context_length_exceeded") from None
    job.decodes(reply)
    for delta in reply:
        if delta.text and not delta.thinking:
            yield delta.text
    metrics = reply.metrics()
    state.runtime.telemetry.reply(metrics)
    # "stopped" is a stop string, unless we ended the reply ourselves.
    cut = job.timed_out or metrics.finish_reason in ("length", "context")
    yield Answered(metrics, "length" if cut else "stop", began)


_ROLES = {"developer": "system"}  # OpenAI's newer name of it; chat templates know the older


async def _timed(results: AsyncIterator[object], asked: float) -> AsyncIterator[object]:
    """`Answered` comes with when the work began; turn that into the wait before it."""
    async for item in results:
        if isinstance(item, Answered):
            item = replace(item, queue_ms=1e3 * (item.queue_ms - asked))
        yield item


async def _whole(results: AsyncIterator[object], head: dict[str, Any]) -> dict[str, Any]:
    text = ""
    try:
        async for item in results:
            if isinstance(item, str):
                text += item
            elif isinstance(item, Answered):
                choice = {
                    "index": 0,
                    "message": {"role": "assistant", "content": text},
                    "finish_reason": item.finish_reason,
                }
                object_ = {"object": "chat.completion", "choices": [choice]}
                return {**head, **object_, "usage": item.usage()}
    except ClientGone:
        pass
    raise APIError("The request was given up.", 503)


async def _events(
    first: object, rest: AsyncIterator[object], head: dict[str, Any], with_usage: bool
) -> AsyncIterator[str]:
    """Server-sent events: a wait as comments, then chunks, then [DONE]."""
    head = {**head, "object": "chat.completion.chunk"}
    extra = {"usage": None} if with_usage else {}

    def chunk(delta: dict[str, str], finish: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
        return _event({**head, "choices": [choice], **extra})

    yield chunk({"role": "assistant", "content": ""})
    try:
        async for item in _chain(first, rest):
            if isinstance(item, str):
                yield chunk({"content": item})
            elif isinstance(item, Waiting):
                yield f": waiting, {item.position} before, about {item.wait_s or 0:.1f} s\n\n"
            elif isinstance(item, Answered):
                yield chunk({}, item.finish_reason)
                if with_usage:
                    yield _event({**head, "choices": [], "usage": item.usage()})
        yield "data: [DONE]\n\n"
    except APIError as error:
        yield _event(error_body(error.status, error.message, error.param, error.code))
    except ClientGone:
        return


async def _chain(first: object, rest: AsyncIterator[object]) -> AsyncIterator[object]:
    yield first
    async for item in rest:
        yield item


def _event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data, ensure_ascii=False, separators=(',', ':'))}\n\n"


class EventStream(StreamingResponse):
    """Ends its job with itself, however it ends."""

    def __init__(self, events: AsyncIterator[str], job: Job) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(events, media_type="text/event-stream", headers=headers)
        self._job = job

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with contextlib.suppress(OSError):  # the client has gone
                await super().__call__(scope, receive, send)
        finally:
            self._job.stop()
