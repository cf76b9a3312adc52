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
from ui.api.jobs import ClientGone, Job
from ui.api.models import SPEAKER, TRANSCRIBER, require_model
from ui.api.state import APIState, State, Visitor

MAX_SPOKEN_CHARS = 4096  # OpenAI's own

router = APIRouter()


class Transcription(BaseModel):
    text: str


class SpeechRequest(BaseModel):
    """`voice` may be any name: there is one voice."""

    model_config = ConfigDict(extra="forbid")

    model: str = Field(max_length=256)
    input: str = Field(min_length=1, max_length=MAX_SPOKEN_CHARS)
    voice: str | dict[str, str]
    response_format: Format = "mp3"
    speed: Literal[1] | None = 1
    stream_format: Literal["audio"] | None = "audio"
    instructions: Literal[""] | None = None


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
    language: Annotated[Literal["en"] | None, Form()] = None,
    temperature: Annotated[Literal["0", "0.0"] | None, Form()] = None,
) -> Response | dict[str, Any]:
    """What is said in a WAV, FLAC, OGG or MP3 file of ten minutes at most."""
    require_model(model, TRANSCRIBER)
    content = await file.read()
    # Decoding takes a while and no engine: it need not wait at the gate, or on the loop.
    samples = await asyncio.to_thread(_decode, content)
    job = Job(state.runtime, visitor, "transcription", lambda job: _transcribe(state, samples))
    (text,) = await _results(job, request)
    if response_format == "text":
        return PlainTextResponse(f"{text}\n")
    answer: dict[str, Any] = {"text": text}
    if response_format == "verbose_json":
        duration_s = round(len(samples) / STT_RATE_HZ, 3)
        answer |= {"task": "transcribe", "language": "english", "duration": duration_s}
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
    rate_hz = state.runtime.pipeline().synthesizer.rate_hz
    content = await asyncio.to_thread(encode, np.concatenate(parts), rate_hz, body.response_format)
    return Response(content, media_type=MEDIA_TYPES[body.response_format])


def _decode(content: bytes) -> np.ndarray:
    """float32 [n] at 16 kHz. Raises `APIError` for what is no audio, in words without a path."""
    with tempfile.TemporaryDirectory(prefix="unpaused-") as folder:
        path = Path(folder) / "audio"
        path.write_bytes(content)
        try:
            return read_audio(path)
        except UnpausedError as error:
            raise APIError(str(error).replace(str(path), "the file"), param="file") from None


def _transcribe(state: APIState, samples: np.ndarray) -> Iterator[object]:
    yield state.runtime.pipeline().transcribe(samples)


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


async def _results(job: Job, request: Request) -> list[object]:
    """All of them; what was told of the wait is left out."""
    try:
        return [item async for item in _results_only(job, request)]
    except ClientGone:
        raise APIError("The request was given up.", 503) from None


async def _results_only(job: Job, request: Request) -> AsyncIterator[object]:
    async for item in job.results(request):
        if isinstance(item, str | np.ndarray):
            yield item


def _json(answer: dict[str, Any]) -> Response:
    from fastapi.responses import JSONResponse

    return JSONResponse(answer)
