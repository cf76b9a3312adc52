"""/v1/audio: speech to text, and text to speech."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, File, Form, Request, UploadFile
from fastapi.responses import PlainTextResponse, Response
from pydantic import BaseModel, ConfigDict, Field

from audio.frames import STT_RATE_HZ, read_audio
from audio.sentences import ClauseChunker
from audio.tts import Cancel
from engine.errors import UnpausedError
from ui.api.encode import MEDIA_TYPES, Format, encode
from ui.api.errors import APIError
from ui.api.jobs import ClientGone, Job, Waiting
from ui.api.models import SPEAKER, TRANSCRIBER, require_model
from ui.api.only import Only
from ui.api.state import APIState, State, Visitor

MAX_SPOKEN_CHARS = 4096  # OpenAI's own
_LIKELIEST = "the likeliest words are told: temperature 0"

router = APIRouter()


class Transcription(BaseModel):
    text: str


class SpeechRequest(BaseModel):
    """`voice` may be any name: there is one voice."""

    model_config = ConfigDict(extra="forbid")

    model: str = Field(max_length=256)
    input: str = Field(min_length=1, max_length=MAX_SPOKEN_CHARS)
    voice: Any = None
    response_format: Format | None = "mp3"
    speed: Annotated[Any, Only((1,), "there is one speed: 1")] = 1
    stream_format: Annotated[Any, Only(("audio",), "the speech comes as one file")] = "audio"
    instructions: Annotated[Any, Only(("",), "the voice takes no instructions")] = None


@router.post(
    "/audio/transcriptions",
    response_model=Transcription,
    responses={200: {"content": {"text/plain": {}}}},
)
async def transcribe(
    request: Request,
    state: State,
    visitor: Visitor,
    file: Annotated[UploadFile, File()],
    model: Annotated[str, Form(max_length=256)],
    response_format: Annotated[Literal["json", "text", "verbose_json"], Form()] = "json",
    language: Annotated[str | None, Form(max_length=32)] = None,
    temperature: Annotated[Any, Only(("0", "0.0"), _LIKELIEST), Form()] = None,
    stream: Annotated[Any, Only(("false", "False"), "the transcript comes whole"), Form()] = None,
    timestamp_granularities: Annotated[
        Any, Only((), "the transcript has no times"), Form(alias="timestamp_granularities[]")
    ] = None,
) -> Response | dict[str, Any]:
    """What is said in a WAV, FLAC, OGG or MP3 file of ten minutes at most.

    A `prompt` is a hint, which this server does without.
    """
    require_model(model, TRANSCRIBER)
    content = await file.read()
    # Decoding takes a while and no engine: it need not wait at the gate, or on the loop.
    samples = await asyncio.to_thread(_decode, content)
    job = Job(
        state.runtime, visitor, "transcription", lambda job: _transcribe(state, samples, language)
    )
    ((text, heard_as),) = await _results(job, request)
    if response_format == "text":
        return PlainTextResponse(f"{text}\n")
    answer: dict[str, Any] = {"text": text}
    if response_format == "verbose_json":
        duration_s = round(len(samples) / STT_RATE_HZ, 3)
        answer |= {"task": "transcribe", "language": heard_as, "duration": duration_s}
        return _json(answer)
    return answer


@router.post(
    "/audio/speech",
    response_class=Response,
    responses={200: {"content": {kind: {} for kind in MEDIA_TYPES.values()}}},
)
async def speak(body: SpeechRequest, request: Request, state: State, visitor: Visitor) -> Response:
    """The text as speech; `pcm` is 24 kHz, 16 bit, mono, as OpenAI has it."""
    require_model(body.model, SPEAKER)
    job = Job(state.runtime, visitor, "speech", lambda job: _speak(job, state, body.input))
    parts = [part for part in await _results(job, request) if isinstance(part, np.ndarray)]
    if not parts:
        raise APIError("There is nothing in the input that can be said.", param="input")
    rate_hz, kind = state.runtime.pipeline().synthesizer.rate_hz, body.response_format or "mp3"
    content = await asyncio.to_thread(encode, np.concatenate(parts), rate_hz, kind)
    return Response(content, media_type=MEDIA_TYPES[kind])


def _decode(content: bytes) -> np.ndarray:
    """float32 [n] at 16 kHz. Raises `APIError` for what is no audio, in words without a path."""
    with tempfile.TemporaryDirectory(prefix="unpaused-") as folder:
        path = Path(folder) / "audio"
        path.write_bytes(content)
        try:
            return read_audio(path)
        except UnpausedError as error:
            raise APIError(str(error).replace(str(path), "the file"), param="file") from None


def _transcribe(
    state: APIState, samples: np.ndarray, language: str | None
) -> Iterator[tuple[str, str]]:
    """The text and the language that it was heard as. A multilingual model may choose that."""
    pipeline = state.runtime.pipeline()
    if language and pipeline.language not in (None, language):
        told = f"this server hears {pipeline.language!r}: name that, or leave it out"
        raise APIError(f"language: {told}", param="language")
    yield pipeline.transcribe(samples), pipeline.language or language or "unknown"


def _speak(job: Job, state: APIState, text: str) -> Iterator[object]:
    """int16 [n] for each clause."""
    cancel = Cancel()
    job.stops_by(cancel.set)
    synthesizer, chunker = state.runtime.pipeline().synthesizer, ClauseChunker()
    for clause in [*chunker.push(text), *chunker.flush()]:
        pcm = synthesizer.synthesize(clause, cancel)
        if len(pcm):
            yield pcm
    if job.timed_out:
        raise APIError("Others are waiting, and this took too long: send less text.", 503)


async def _results(job: Job, request: Request) -> list[Any]:
    """All of them; what was told of the wait is left out."""
    try:
        return [item async for item in _results_only(job, request)]
    except ClientGone:
        raise APIError("The request was given up.", 503) from None


async def _results_only(job: Job, request: Request) -> AsyncIterator[object]:
    async for item in job.results(request):
        if not isinstance(item, Waiting):
            yield item


def _json(answer: dict[str, Any]) -> Response:
    from fastapi.responses import JSONResponse

    return JSONResponse(answer)
