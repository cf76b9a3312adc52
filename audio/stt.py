"""Speech to text: Whisper through CTranslate2, encoding no more than it needs.

Whisper's encoder always sees 30 s, mostly silence; that is where its time goes. How much silence
can be left out was measured with tiny.en (int8) on 122 clips of 0.8-26 s: ten recordings of five
speakers, Piper and four eSpeak voices, and half of them again with noise at 15 dB. Word error
rate, and processor time of the median clip:

    30 s                  0.119   429 ms
    speech + 0.5 s        0.568   137 ms   (0.305 with loops cut off; repeats short utterances)
    speech + 3 s          0.292   116 ms
    speech + 7 s          0.148   135 ms   (still loops)
    8 s, else 20 or 30    0.148   157 ms   (still loops)
    10 s, else speech + 3 0.129   143 ms   (0.126 with the retry below; no loop)
    12 s, else 20 or 30   0.124   176 ms

Short windows loop because the end marker was learnt after a long silence, so the window is about
silence after the speech more than about the speech.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import ctranslate2
import numpy as np
from faster_whisper.tokenizer import Tokenizer
from faster_whisper.transcribe import get_suppressed_tokens

from audio.frames import STT_RATE_HZ
from audio.vad import BLOCK, StreamingVad
from audio.whisper import Device, open_whisper
from engine.errors import UnpausedError

_FULL_WINDOW_S = 30.0
_MIN_WINDOW_S = 10.0
_TAIL_S = 3.0
_PIECE_S = (15.0, 27.0)  # a longer utterance is cut at its best pause between these
_PAUSE_BLOCKS = 10  # 320 ms: over this a pause between words is told from a stop consonant

# Whisper writes fluent sentences about silence. What speech and other sounds measured, same clips
# and forty of silence, noise, hum, tones, coughs and clicks:
_MIN_VOICED_MS = 160  # shortest "Stop." 256, in some cuts less; other sounds 0
_VOICED = 0.5
_MAX_NO_SPEECH = 0.6  # speech at most 0.32; other sounds 0.74 and more
_MIN_LOGPROB = -1.5  # mean per token; below it no clip had half of its words right
_RETRY_LOGPROB = -1.0  # Whisper's own threshold for decoding again
_RETRY_COMPRESSION = 2.4  # the same; clips at most 1.7
_TOKENS_PER_S, _TOKENS_EXTRA = 8, 8  # a loop runs into this; the fastest clip has 5 per second


@dataclass(frozen=True)
class Transcript:
    """`text` is "" when there was no speech. `no_speech_prob` and `avg_logprob` (mean natural
    logarithm per token) are Whisper's own; 1 and 0 when it was not even asked. `ms` is how long
    it took."""

    text: str
    no_speech_prob: float
    avg_logprob: float
    ms: float


@dataclass(frozen=True)
class _Decoded:
    text: str
    no_speech_prob: float
    avg_logprob: float
    tokens: int
    looped: bool

    @property
    def doubtful(self) -> bool:
        """Whether a longer window may do better."""
        repeats = _compression(self.text) > _RETRY_COMPRESSION
        return self.looped or repeats or self.avg_logprob < _RETRY_LOGPROB

    @property
    def speech(self) -> bool:
        """Whether this is what somebody said."""
        sure = self.no_speech_prob < _MAX_NO_SPEECH and self.avg_logprob >= _MIN_LOGPROB
        return sure and not self.looped and any(map(str.isalnum, self.text))


class Transcriber:
    """One Whisper model (a folder in CTranslate2's format), safe to share by threads.

    `device` is "cpu", "cuda" or "auto": a GPU where CTranslate2 finds one. `threads` are
    CTranslate2's own, for the CPU. `language` is a code such as "de"; None follows the model: an
    English one hears English, a multilingual one tells the language of every utterance. Raises
    `UnpausedError` when the folder does not hold a model, or not one of that language.
    """

    def __init__(
        self,
        model_dir: Path | str,
        threads: int = 2,
        language: str | None = None,
        device: Device = "auto",
    ) -> None:
        self._whisper, self.device = open_whisper(Path(model_dir), threads, device)
        self.multilingual = bool(self._whisper.model.is_multilingual)
        self.language = self._check_language(language)
        self._speeches = {code: self._speech(code) for code in filter(None, [self.language])}
        self._suppressed = get_suppressed_tokens(self._speech(self.language or "en")[0], [-1])

    def _check_language(self, language: str | None) -> str | None:
        if not self.multilingual:
            if language not in (None, "en"):
                raise UnpausedError(
                    f"this speech model knows English only, not {language!r}: choose a "
                    "multilingual one, as with --stt base"
                )
            return "en"
        known = self._whisper.supported_languages
        if language is not None and language not in known:
            raise UnpausedError(f"unknown language {language!r}; known: {', '.join(known)}")
        return language

    def _speech(self, language: str) -> tuple[Tokenizer, list[int]]:
        """The tokenizer and the prompt of one language."""
        tokenizer = Tokenizer(
            self._whisper.hf_tokenizer, self.multilingual, task="transcribe", language=language
        )
        return tokenizer, self._whisper.get_prompt(tokenizer, [], without_timestamps=True)

    def _speech_of(self, encoded: ctranslate2.StorageView) -> tuple[Tokenizer, list[int]]:
        language = self.language
        if language is None:
            ((token, _), *_) = self._whisper.model.detect_language(encoded)[0]
            language = token.strip("<|>")
        if language not in self._speeches:
            self._speeches[language] = self._speech(language)
        return self._speeches[language]

    def warm(self) -> None:
        """Run once on silence: the first run of a model takes twice as long as the next."""
        self._decode(np.zeros(STT_RATE_HZ, np.float32), _MIN_WINDOW_S)

    def transcribe(self, samples: np.ndarray) -> Transcript:
        """What was said in float32 [n] at 16 kHz, of any length."""
        started = time.perf_counter()
        decoded: list[_Decoded] = []
        probabilities = StreamingVad().probabilities(samples)
        voiced_ms = np.count_nonzero(probabilities >= _VOICED) * BLOCK / STT_RATE_HZ * 1000
        if voiced_ms >= _MIN_VOICED_MS:
            decoded = [self._decode_piece(piece) for piece in _pieces(samples, probabilities)]
        kept = [piece for piece in decoded if piece.speech]
        counted = kept or decoded
        tokens = sum(piece.tokens for piece in counted)
        return Transcript(
            text=" ".join(piece.text for piece in kept),
            no_speech_prob=max((piece.no_speech_prob for piece in counted), default=1.0),
            avg_logprob=sum(p.avg_logprob * p.tokens for p in counted) / tokens if tokens else 0.0,
            ms=(time.perf_counter() - started) * 1000,
        )

    def _decode_piece(self, samples: np.ndarray) -> _Decoded:
        window_s = max(_MIN_WINDOW_S, len(samples) / STT_RATE_HZ + _TAIL_S)
        decoded = self._decode(samples, min(window_s, _FULL_WINDOW_S))
        if decoded.no_speech_prob < _MAX_NO_SPEECH and decoded.doubtful:
            return self._decode(samples, _FULL_WINDOW_S)
        return decoded

    def _decode(self, samples: np.ndarray, window_s: float) -> _Decoded:
        limit = int(_TOKENS_EXTRA + _TOKENS_PER_S * len(samples) / STT_RATE_HZ)
        limit = min(limit, self._whisper.max_length // 2)
        encoded = self._encode(samples, window_s)
        tokenizer, prompt = self._speech_of(encoded)
        result = self._whisper.model.generate(
            encoded,
            [prompt],
            beam_size=1,
            max_length=2 * limit,  # CTranslate2 keeps half of it for the prompt
            return_scores=True,
            return_no_speech_prob=True,
            suppress_blank=True,
            suppress_tokens=self._suppressed,
        )[0]
        ids = result.sequences_ids[0]
        return _Decoded(
            text=tokenizer.decode(ids).strip(),
            no_speech_prob=result.no_speech_prob,
            # The score is the mean over the tokens without the end marker, whose own part in the
            # sum makes the mean over all of them.
            avg_logprob=result.scores[0] * len(ids) / (len(ids) + 1),
            tokens=len(ids) + 1,
            looped=len(ids) >= limit,
        )

    def _encode(self, samples: np.ndarray, window_s: float) -> ctranslate2.StorageView:
        # Silence is added as samples, as in training: zeros in place of features, which
        # faster-whisper adds, cost 0.015 to 0.05 of word error rate.
        window = np.zeros(int(window_s * STT_RATE_HZ), np.float32)
        window[: len(samples)] = samples[: len(window)]
        frames = 2 * (len(window) // (2 * self._whisper.feature_extractor.hop_length))
        features = self._whisper.feature_extractor(window, padding=0)[None, :, :frames]
        features = np.ascontiguousarray(features, dtype=np.float32)
        return self._whisper.model.encode(ctranslate2.StorageView.from_array(features))


def _pieces(samples: np.ndarray, probabilities: np.ndarray) -> Iterator[np.ndarray]:
    """Cut float32 [n] into windows that Whisper can take, in its pauses.

    `probabilities` are the detector's, one per block.
    """
    weights = np.full(_PAUSE_BLOCKS, 1 / _PAUSE_BLOCKS)
    pauses = np.convolve(probabilities, weights, mode="same")
    earliest, latest = (int(bound_s * STT_RATE_HZ) // BLOCK for bound_s in _PIECE_S)
    start = 0
    while len(pauses) - start > latest:
        cut = start + earliest + int(pauses[start + earliest : start + latest].argmin())
        yield samples[start * BLOCK : cut * BLOCK]
        start = cut
    yield samples[start * BLOCK :]


def _compression(text: str) -> float:
    """How many times smaller the text gets: repetition shows in it (Whisper's measure)."""
    content = text.encode()
    return len(content) / len(zlib.compress(content)) if content else 0.0
