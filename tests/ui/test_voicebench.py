"""The socket, judged from outside: voicebench plays a conversation into it and listens.

It knows nothing of us but PCM both ways. Here the models are stand-ins; `benchmarks/voice_blackbox`
runs the same script with the real ones.
"""

from __future__ import annotations

from benchmarks.blackbox import play, socket_of
from tests.ui.fakes import FakePipeline
from ui.visitors import Visitors

SCRIPT = {
    "name": "page socket",
    "sample_rate": 16000,
    "tail_ms": 500,
    "max_duration_ms": 12_000,  # the last answer is not listened to
    "turns": [
        {
            "id": "question",
            "audio": {"synth": "speech", "duration_ms": 900, "level_db": -16},
            "start": {"after": "session_start", "delay_ms": 400},
            "expect": "respond",
            "text": "Why is the sky blue?",
        },
        {
            "id": "click",
            "audio": {"synth": "noise", "duration_ms": 90, "level_db": -20},
            "start": {"after": "agent_speech_start", "delay_ms": 400},
            "expect": "ignore",
        },
        {
            "id": "interruption",
            "audio": {"synth": "speech", "duration_ms": 1200, "level_db": -16, "seed": 1},
            "start": {"after": "previous_turn_end", "delay_ms": 1100},
            "expect": "stop",
            "max_stop_ms": 500,
        },
        {
            "id": "again",
            "audio": {"synth": "speech", "duration_ms": 900, "level_db": -16, "seed": 2},
            "start": {"after": "agent_speech_start", "delay_ms": 900},
            "expect": "stop",
            "max_stop_ms": 500,
        },
    ],
}


def test_a_conversation_with_an_interruption_and_a_click(
    visitors: Visitors, pipeline: FakePipeline
) -> None:
    pipeline.reply = " ".join(["Short waves of light are scattered more than long ones."] * 4)
    with socket_of(visitors) as url:
        result = play(SCRIPT, url)
    (session,) = result.sessions
    question, click, interruption, again = session.turns
    assert question.responded and question.wer == 0, question
    assert question.response_latency_ms is not None and question.response_latency_ms > 0
    assert click.passed, click
    assert interruption.stopped and interruption.responded, interruption
    assert again.stopped, again
