"""What the voice socket's messages look like, and the checks on what a client sends.

`ui/socket.py` describes the whole conversation; this file is its grammar, free of any I/O.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import Any, Literal

FRAME_HEADER = struct.Struct("<BBHI")  # kind, reserved (0), sequence, take or turn
MICROPHONE, SPEECH = 1, 2  # kinds of binary frame
FRAME_MS = 20
MAX_FRAME_SAMPLES = 1600  # 100 ms at 16 kHz; the page sends 320
MAX_TEXT_BYTES = 4096  # no client message is longer
MAX_COUNT = 2**31 - 1  # of takes, turns and samples
NEW = "new"  # a session for who has none
RAW_RATES_HZ = range(8000, 48001)
MAX_TIME_MS = 3_600_000


class ProtocolError(ValueError):
    """A message the server refuses; the text says why. The connection goes on."""


@dataclass(frozen=True, slots=True)
class MicrophoneFrame:
    """`pcm`: little-endian int16 mono at 16 kHz. `take` numbers the stretches of listening."""

    take: int
    sequence: int
    pcm: bytes


@dataclass(frozen=True, slots=True)
class Hello:
    """`rate_hz` is that of bare PCM16 in both directions; None for the page's own frames."""

    session: str
    rate_hz: int | None = None


@dataclass(frozen=True, slots=True)
class Talk:
    """Listening begins (`on`) or ends. "hold" is push-to-talk, "free" is hands-free."""

    take: int
    on: bool
    mode: Literal["hold", "free"]


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop turn `turn`, of whose speech `samples` samples were played."""

    turn: int
    samples: int


@dataclass(frozen=True, slots=True)
class Sound:
    on: bool


@dataclass(frozen=True, slots=True)
class Played:
    """`samples` of turn `turn`'s speech were played, at the rate they were sent with.

    `ago_ms`: how long ago the first of them was audible. `waited_ms`: how long it had been with
    the client by then; None from a client that does not know.
    """

    turn: int
    samples: int
    done: bool
    waited_ms: float | None = None
    ago_ms: float = 0.0


ClientMessage = Hello | Talk | Stop | Sound | Played


def pack_speech(turn: int, sequence: int, pcm: bytes) -> bytes:
    """A binary frame with `pcm` (little-endian int16 mono) for turn `turn`."""
    return FRAME_HEADER.pack(SPEECH, 0, sequence & 0xFFFF, turn) + pcm


def parse_frame(data: bytes) -> MicrophoneFrame:
    """Check one binary message of the client. Raises `ProtocolError`."""
    if len(data) < FRAME_HEADER.size:
        raise ProtocolError(f"a frame has a header of {FRAME_HEADER.size} bytes; got {len(data)}")
    kind, reserved, sequence, take = FRAME_HEADER.unpack_from(data)
    pcm_bytes = len(data) - FRAME_HEADER.size
    if kind != MICROPHONE or reserved != 0:
        raise ProtocolError(f"unknown kind of frame {kind}/{reserved}")
    if pcm_bytes == 0 or pcm_bytes % 2:
        raise ProtocolError(f"a frame holds whole 16-bit samples; got {pcm_bytes} bytes")
    if pcm_bytes > 2 * MAX_FRAME_SAMPLES:
        raise ProtocolError(f"a frame holds at most {MAX_FRAME_SAMPLES} samples")
    if take > MAX_COUNT:
        raise ProtocolError("take is out of range")
    return MicrophoneFrame(take, sequence, data[FRAME_HEADER.size :])


def parse_message(text: str) -> ClientMessage:
    """Check one text message of the client. Raises `ProtocolError`."""
    if len(text) > MAX_TEXT_BYTES:
        raise ProtocolError(f"a message has at most {MAX_TEXT_BYTES} characters")
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        raise ProtocolError("a text message is one JSON object") from None
    if not isinstance(fields, dict):
        raise ProtocolError("a text message is one JSON object")
    match fields.get("type"):
        case "hello":
            return Hello(_text(fields, "session"), _rate_hz(fields))
        case "talk":
            mode = _text(fields, "mode")
            if mode not in ("hold", "free"):
                raise ProtocolError('mode is "hold" or "free"')
            return Talk(_count(fields, "take"), _flag(fields, "on"), mode)  # type: ignore[arg-type]
        case "stop":
            return Stop(_count(fields, "turn"), _count(fields, "samples"))
        case "sound":
            return Sound(_flag(fields, "on"))
        case "played":
            return Played(
                _count(fields, "turn"),
                _count(fields, "samples"),
                _flag(fields, "done"),
                _time_ms(fields, "waited_ms"),
                _time_ms(fields, "ago_ms") or 0.0,
            )
    raise ProtocolError("unknown type of message")


def _count(fields: dict[str, Any], name: str) -> int:
    value = fields.get(name)
    # bool is an int to isinstance.
    if type(value) is not int or not 0 <= value <= MAX_COUNT:
        raise ProtocolError(f"{name} is a whole number from 0 to {MAX_COUNT}")
    return value


def _rate_hz(fields: dict[str, Any]) -> int | None:
    """Of bare PCM16, when that is asked for."""
    if fields.get("format", "frames") == "frames":
        return None
    rate_hz = _count(fields, "sample_rate")
    if fields["format"] != "pcm16" or rate_hz not in RAW_RATES_HZ:
        raise ProtocolError('format is "frames", or "pcm16" with a sample_rate of 8000 to 48000')
    return rate_hz


def _time_ms(fields: dict[str, Any], name: str) -> float | None:
    """A duration that may be left out."""
    value = fields.get(name)
    if value is None:
        return None
    if type(value) not in (int, float) or not 0 <= value <= MAX_TIME_MS:  # NaN is not
        raise ProtocolError(f"{name} is a number of milliseconds from 0 to {MAX_TIME_MS}")
    return float(value)


def _flag(fields: dict[str, Any], name: str) -> bool:
    value = fields.get(name)
    if not isinstance(value, bool):
        raise ProtocolError(f"{name} is true or false")
    return value


def _text(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not value:
        raise ProtocolError(f"{name} is a text")
    return value
