import json
import struct

import pytest

from ui.protocol import (
    Hello,
    Played,
    ProtocolError,
    Sound,
    Stop,
    Talk,
    pack_speech,
    parse_frame,
    parse_message,
)


def frame(pcm: bytes, kind: int = 1, reserved: int = 0, take: int = 3) -> bytes:
    return struct.pack("<BBHI", kind, reserved, 7, take) + pcm


def test_a_microphone_frame_is_taken_apart() -> None:
    parsed = parse_frame(frame(b"\x01\x02" * 320))
    assert (parsed.take, parsed.sequence, len(parsed.pcm)) == (3, 7, 640)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x01\x00\x00",
        frame(b""),
        frame(b"\x00" * 3),
        frame(b"\x00" * 3202),
        frame(b"\x00" * 2_000_000),
        frame(b"\x00\x00", kind=2),
        frame(b"\x00\x00", kind=255),
        frame(b"\x00\x00", reserved=1),
        frame(b"\x00\x00", take=2**32 - 1),
    ],
)
def test_a_bad_frame_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse_frame(data)


def test_a_speech_frame_carries_turn_sequence_and_samples() -> None:
    data = pack_speech(5, 65536 + 9, b"\x01\x00\xff\xff")
    assert struct.unpack("<BBHI2h", data) == (2, 0, 9, 5, 1, -1)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"type": "hello", "session": "abc"}, Hello("abc")),
        ({"type": "talk", "take": 1, "on": True, "mode": "hold"}, Talk(1, True, "hold")),
        ({"type": "stop", "turn": 4, "samples": 0}, Stop(4, 0)),
        ({"type": "sound", "on": False, "later": "field"}, Sound(False)),
        ({"type": "played", "turn": 1, "samples": 9, "done": True}, Played(1, 9, True)),
    ],
)
def test_a_message_is_understood(fields: dict[str, object], message: object) -> None:
    assert parse_message(json.dumps(fields)) == message


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        "[]",
        "1",
        "NaN",
        "[" * 3000,
        "{}",
        '{"type": 1}',
        '{"type": "ready"}',
        '{"type": "hello"}',
        '{"type": "hello", "session": 5}',
        '{"type": "hello", "session": "' + "x" * 5000 + '"}',
        '{"type": "talk", "take": 1, "on": 1, "mode": "hold"}',
        '{"type": "talk", "take": 1, "on": true, "mode": "shout"}',
        '{"type": "talk", "take": true, "on": true, "mode": "hold"}',
        '{"type": "stop", "turn": -1, "samples": 0}',
        '{"type": "stop", "turn": 1.5, "samples": 0}',
        '{"type": "stop", "turn": 1e400, "samples": 0}',
        '{"type": "stop", "turn": 99999999999, "samples": 0}',
        '{"type": "played", "turn": 1, "samples": NaN, "done": false}',
        '{"type": "sound", "on": null}',
    ],
)
def test_a_bad_message_is_refused(text: str) -> None:
    with pytest.raises(ProtocolError):
        parse_message(text)
