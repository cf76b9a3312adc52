"""A session's turns and comparisons, as they were measured: what can be exported.

It lives and ends with its session; nothing is written to disk.
"""

from __future__ import annotations

import io
import json
import wave
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

import audio.record
from engine.errors import UnpausedError
from ui.playout import Playout
from ui.race import badge, outcome
from ui.trace import Trace
from ui.verdict import StageDict, sentence

if TYPE_CHECKING:
    from ui.turn_worker import TurnWorker

MAX_TURNS = 200
MAX_COMPARISONS = 100
MAX_SPEECH_BYTES = 16 * 2**20  # about six minutes of both voices; the oldest go first
PAUSE_S = 0.5  # between two replies in one WAV

_SILENT = "the voice said nothing that could be exported: is sound on?"


@dataclass
class TurnRecord:
    """One turn. `speech`: int16 [n] pieces, what the voice said; more may come after its words."""

    number: int
    kind: str
    question: str
    answer: str
    finish: str
    error: str
    stages: list[StageDict]
    trace: Trace | None
    voice: Playout | None = None  # its rate is known with the first clause
    speech: list[np.ndarray] = field(default_factory=list)
    played: audio.record.TurnRecord | None = None  # as it was heard, once it is over

    @property
    def rate_hz(self) -> int:
        """Of the speech; 0 before there is any."""
        return self.voice.rate_hz if self.voice is not None else 0

    @property
    def speech_bytes(self) -> int:
        return sum(piece.nbytes for piece in self.speech)

    @property
    def sound_bytes(self) -> int:
        """What it keeps of both voices."""
        return self.speech_bytes + (self.played.question.nbytes if self.played else 0)

    def forget_sound(self) -> None:
        self.speech, self.played = [], None

    def heard(self) -> audio.record.TurnRecord:
        """The turn with its sound, or as much of it as there is while it is being played."""
        total_ms = sum(stage["ms"] for stage in self.stages)
        return self.played or audio.record.TurnRecord(
            self.number, self.kind, total_ms=total_ms, rate_hz=self.rate_hz, answer=self.speech
        )

    def as_dict(self) -> dict[str, Any]:
        return {
            "turn": self.number,
            "kind": self.kind,
            "question": self.question,
            "answer": self.answer,
            "finish": self.finish,
            "error": self.error or None,
            "stages": self.stages,
            "verdict": sentence(self.stages) or None,
            "speech_s": round(self.speech_bytes / 2 / self.rate_hz, 3) if self.rate_hz else None,
            "wav": self.heard().sound(),
            "decode": self.trace.as_dict() if self.trace else None,
        }


@dataclass(frozen=True)
class ComparisonRecord:
    """The same prompt on two engines. `order` says which trace ran first."""

    kind: str  # "again" or "race"
    traces: tuple[Trace, Trace]
    order: tuple[int, ...]

    def as_dict(self) -> dict[str, Any]:
        identical, words = badge(*self.traces)
        return {
            "kind": self.kind,
            "ran_in_order": [self.traces[index].engine for index in self.order],
            "identical_tokens": identical,
            "tokens": words,
            "outcome": outcome(self.traces).sentence,
            "runs": [trace.as_dict() for trace in self.traces],
        }


class Ledger:
    """Not thread-safe: its session's lock guards it."""

    def __init__(self) -> None:
        self.turns: deque[TurnRecord] = deque(maxlen=MAX_TURNS)
        self.comparisons: deque[ComparisonRecord] = deque(maxlen=MAX_COMPARISONS)

    def record(self, worker: TurnWorker, trace: Trace | None, speech: list[np.ndarray]) -> None:
        """Keep a turn that has ended, unless nothing was said to it."""
        asked = [message["content"] for message in worker.log if message["role"] == "user"]
        if worker.finish == "no_speech" or not asked:
            return
        self.add(
            TurnRecord(
                number=worker.number,
                kind=worker.kind,
                question=asked[-1],
                answer=trace.answer.strip() if trace else "",
                finish=worker.finish or "stopped",
                error=worker.error,
                stages=worker.stages,
                trace=trace,
                voice=worker.playout,
                speech=speech,
            )
        )

    def measured(self, worker: TurnWorker) -> None:
        """The stages of `worker`'s turn are complete now, which may have been recorded before."""
        for turn in self.turns:
            if turn.number == worker.number:
                turn.stages = worker.stages

    def over(self, number: int, played: audio.record.TurnRecord) -> None:
        """Nothing more of turn `number` is played, and this is what it was."""
        for turn in self.turns:
            if turn.number == number:
                turn.played = played
        self._bound()

    def add(self, record: TurnRecord) -> None:
        self.turns.append(record)
        self._bound()

    def _bound(self) -> None:
        kept = sum(turn.sound_bytes for turn in self.turns)
        for turn in self.turns:
            if kept <= MAX_SPEECH_BYTES:
                break
            kept -= turn.sound_bytes
            turn.forget_sound()

    @property
    def trace(self) -> Trace | None:
        """Of the latest turn that has one."""
        return next((turn.trace for turn in reversed(self.turns) if turn.trace), None)

    def turn(self, number: int) -> TurnRecord:
        """Raises `UnpausedError` when there is no such turn (any more)."""
        for turn in self.turns:
            if turn.number == number:
                return turn
        raise UnpausedError(f"there is no turn {number} to export")

    def session_json(self) -> bytes:
        """Every turn and comparison."""
        return to_json(
            {
                "turns": [turn.as_dict() for turn in self.turns],
                "comparisons": [comparison.as_dict() for comparison in self.comparisons],
            }
        )

    def turn_json(self, number: int) -> bytes:
        return to_json(self.turn(number).as_dict())

    def turn_wav(self, number: int) -> bytes:
        """One turn in stereo: who asked on the left, the answer on the right, as far apart as they
        were. Raises `UnpausedError` when it has no sound.
        """
        heard = self.turn(number).heard()
        if heard.sound() is None:
            raise UnpausedError(_SILENT)
        return heard.wav()

    def wav(self) -> bytes:
        """What the voice said in all turns, with a pause between two.

        Raises `UnpausedError` when it said nothing.
        """
        spoken = [turn for turn in self.turns if turn.speech]
        if not spoken:
            raise UnpausedError(_SILENT)
        return to_wav([np.concatenate(turn.speech) for turn in spoken], spoken[-1].rate_hz)


def to_json(data: dict[str, Any]) -> bytes:
    """`data` under the project's name, readable."""
    return json.dumps({"unpaused": 1, **data}, ensure_ascii=False, indent=1).encode()


def to_wav(replies: Sequence[np.ndarray], rate_hz: int) -> bytes:
    """Mono PCM16 of `replies`, int16 [n] each."""
    pause = np.zeros(int(PAUSE_S * rate_hz), np.int16)
    parts = [part for reply in replies for part in (pause, reply)][1:]
    target = io.BytesIO()
    with wave.open(target, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate_hz)
        file.writeframes(np.concatenate(parts).astype("<i2").tobytes())
    return target.getvalue()
