"""People and a language model for a room, without any model: speech is loud, words have levels.

A text is spoken as sound of one level that no other text has, so the transcriber recognises it
again in whatever the endpointing cut out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from audio.completeness import looks_complete
from audio.dialogue import DialogueConfig
from audio.frames import STT_RATE_HZ
from audio.rounds import Parts, Request
from audio.tts import Cancel
from audio.turn import Turn
from engine.base import Token
from engine.generate import TextDelta
from engine.metrics import ReplyMetrics
from tests.audio.room import Costs, Room

VOICE_HZ = 8000
LETTER_S = 0.06  # of speech
LOUD = 0.05
QUESTION = "Why is the sky blue?"
REPLY = "The sky is blue because air scatters light. Short waves are scattered more than long ones."


@dataclass
class Talk:
    """A conversation that answers from a table, or always the same."""

    replies: dict[str, str] = field(default_factory=dict)
    reply_text: str = REPLY
    ends_at_once: bool = False  # the first token of a reply is its end
    messages: list[dict[str, str]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def reply(self, text: str) -> ScriptedReply:
        self.asked.append(text)
        return ScriptedReply(self, text, self.replies.get(text, self.reply_text))

    def keep_heard(self, text: str) -> None:
        self.messages[-1] = {"role": "assistant", "content": text}

    def retract(self) -> None:
        del self.messages[-2:]

    def said(self) -> list[str]:
        """The messages' texts, in order."""
        return [message["content"] for message in self.messages]


class ScriptedReply:
    """A word a token."""

    def __init__(self, talk: Talk, asked: str, text: str) -> None:
        self._talk, self._asked, self._words = talk, asked, text
        self.text = ""
        self.stopped = False
        self._metrics = ReplyMetrics(engine="scripted", start_ns=0)

    def __iter__(self) -> Iterator[TextDelta]:
        if self._talk.ends_at_once:
            self._metrics.token_times_ns.append(6_000_000)
            yield TextDelta("", Token(2, 6_000_000, -0.1))
            return
        words = self._words.split(" ") if self._words else []
        for position, word in enumerate(words):
            if self.stopped:
                return
            piece = word if position == 0 else " " + word
            self.text += piece
            time_ns = (position + 1) * 6_000_000
            self._metrics.token_times_ns.append(time_ns)
            yield TextDelta(piece, Token(position, time_ns, -0.1))

    def stop(self) -> None:
        self.stopped = True

    def join(self) -> None:
        self._talk.messages += [
            {"role": "user", "content": self._asked},
            {"role": "assistant", "content": self.text},
        ]

    def metrics(self) -> ReplyMetrics:
        return self._metrics


class ToneVoice:
    """Speaks a letter in `LETTER_S`."""

    rate_hz = VOICE_HZ

    def warm(self) -> None:
        pass

    def synthesize(self, text: str, cancel: Cancel | None = None) -> np.ndarray:
        if not any(map(str.isalnum, text)):
            return np.zeros(0, np.int16)
        times = np.arange(int(len(text) * LETTER_S * VOICE_HZ)) / VOICE_HZ
        return (8000 * np.sin(2 * np.pi * 300 * times)).astype(np.int16)


class Loudness:
    """Speech is what is loud and not `noise`."""

    def reset(self) -> None:
        pass

    def probability(self, block: np.ndarray) -> float:
        return 1.0 if float(np.abs(block).max()) > LOUD else 0.0


class Speech:
    """Gives every text a sound of its own, and finds the texts in a sound again."""

    def __init__(self) -> None:
        self._texts: list[str] = []

    def __call__(self, text: str, seconds: float | None = None) -> np.ndarray:
        """float32 [n] at 16 kHz; what has no letters is a noise that has no words."""
        self._texts.append(text)
        seconds = max(0.35, 0.05 * len(text)) if seconds is None else seconds
        level = 0.1 + 0.01 * len(self._texts)
        return np.full(int(seconds * STT_RATE_HZ), level, np.float32)

    def transcribe(self, samples: np.ndarray) -> str:
        levels = np.rint((samples[samples > LOUD] - 0.1) * 100).astype(int)
        found = levels[np.flatnonzero(np.diff(levels, prepend=-1))]
        texts = [self._texts[level - 1] for level in found if 0 < level <= len(self._texts)]
        return " ".join(text for text in texts if any(map(str.isalnum, text)))

    def judge(self, samples: np.ndarray) -> float:
        """As the model of the sound would: by how the text ends."""
        return 0.95 if looks_complete(self.transcribe(samples)) else 0.05


@dataclass
class Company:
    """A room with somebody in it."""

    room: Room
    talk: Talk
    say: Speech
    opened: list[Request]


def company(
    talk: Talk | None = None,
    judge: bool = True,
    config: DialogueConfig | None = None,
    costs: Costs | None = None,
    begin: Callable[[str], Any] | None = None,
) -> Company:
    """A room on a virtual clock with stand-ins for every model."""
    talk, speech, voice = talk or Talk(), Speech(), ToneVoice()
    opened: list[Request] = []

    def turn(text: str) -> Turn:
        return Turn(talk.reply, voice, text=text)  # type: ignore[arg-type]

    @contextmanager
    def open_turn(request: Request) -> Iterator[Parts]:
        opened.append(request)
        yield Parts(talk, begin or turn, "scripted")

    room = Room(
        open_turn,
        speech.transcribe,
        Loudness(),
        speech.judge if judge else None,
        config,
        costs,
    )
    return Company(room, talk, speech, opened)


def asked(question: str = QUESTION, **parts: Any) -> Company:
    """Somebody has asked, and the reply has just become audible."""
    there = company(**parts)
    there.room.quiet(0.5).hear(there.say(question)).until_audible()
    return there
