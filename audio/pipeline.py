"""Speech to text to reply to speech, each stage handing on what is ready:

transcriber -> conversation.reply -> ClauseChunker -> synthesizer -> events
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from audio.turn import Turn

if TYPE_CHECKING:
    import numpy as np

    from audio.stt import Transcriber
    from audio.tts import Synthesizer
    from engine.base import DecodeEngine
    from engine.conversation import Conversation
    from engine.sampling import SamplingParams


class VoicePipeline:
    """A transcriber and a synthesizer, shared by all turns; conversation and engine come with each.

    Nothing of a turn happens before it is iterated. Faults are its last event, not exceptions.
    """

    def __init__(self, transcriber: Transcriber, synthesizer: Synthesizer) -> None:
        self._transcriber, self._synthesizer = transcriber, synthesizer

    @property
    def synthesizer(self) -> Synthesizer:
        """The voice, for text that is no reply."""
        return self._synthesizer

    @property
    def language(self) -> str | None:
        """The code of what it hears; None where the model tells by itself."""
        return self._transcriber.language

    def warm(self) -> None:
        """Run both models once: first runs take longer, and the first turn should not."""
        self._transcriber.warm()
        self._synthesizer.warm()

    def tidy(self) -> None:
        """Return memory to the system that no turn needs just now."""
        self._synthesizer.tidy()

    def text_turn(
        self,
        text: str,
        conversation: Conversation,
        engine: DecodeEngine,
        params: SamplingParams,
        speak: bool = True,
        joins: bool = True,
    ) -> Turn:
        """Answer `text`, aloud if `speak`. Stages: prefill, first_clause, synthesis.

        With `joins` False the conversation does not know of it before `Turn.join`.
        """
        return Turn(
            lambda heard: conversation.reply(engine, heard, params, joins=joins),
            self._synthesizer if speak else None,
            text=text,
        )

    def transcribe(self, samples: np.ndarray) -> str:
        """What was said in float32 [n] at 16 kHz; "" when nothing was."""
        return self._transcriber.transcribe(samples).text.strip()
