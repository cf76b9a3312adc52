"""The page's parts with real weights."""

from __future__ import annotations

from pathlib import Path

from audio.pipeline import VoicePipeline
from audio.stt import Transcriber
from audio.tts import Synthesizer
from audio.vad import StreamingVad
from engine.conversation import Conversation
from engine.registry import ENGINES
from engine.sampling import SamplingParams
from engine.setup import open_engine, open_model
from ui.services import Lazy, Services


def real_services(llm: Path, stt: Path, voice: Path, max_tokens: int) -> Services:
    """Loaded when first used. Replies end after `max_tokens`, so that tests do."""
    model = Lazy(lambda: open_model("smollm2-135m-instruct", llm))
    return Services(
        model_name="smollm2-135m-instruct",
        engines=list(ENGINES.values()),
        default_engine="eager",
        params=SamplingParams(max_tokens=max_tokens),
        make_engine=lambda name: open_engine(name, model(), speaking=True),
        make_conversation=lambda: Conversation(model(), context=1024),
        make_pipeline=lambda: VoicePipeline(Transcriber(stt), Synthesizer(voice)),
        make_vad=StreamingVad,
    )
