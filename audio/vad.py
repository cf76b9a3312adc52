"""Is this speech? Silero's network, as faster-whisper ships it, fed as a stream or at once."""

from __future__ import annotations

import numpy as np
from faster_whisper.vad import get_vad_model

BLOCK = 512  # samples at 16 kHz (32 ms): what the network was trained on
_CONTEXT = 64  # samples of the block before, which the network sees again
_STATE = (1, 1, 128)


class StreamingVad:
    """One microphone's detector: the network's state is carried from block to block.

    Instances share the weights, so one per microphone costs nothing.
    """

    def __init__(self) -> None:
        self._session = get_vad_model().session
        self.reset()

    def reset(self) -> None:
        """Forget what was heard."""
        self._h = np.zeros(_STATE, np.float32)
        self._c = np.zeros(_STATE, np.float32)
        self._context = np.zeros(_CONTEXT, np.float32)

    def probability(self, block: np.ndarray) -> float:
        """Of speech in the next `block`: float32 [512] at 16 kHz."""
        if block.shape != (BLOCK,):
            raise ValueError(f"a block is [{BLOCK}] samples; got {list(block.shape)}")
        return float(self._run(block.astype(np.float32, copy=False)[None])[0])

    def probabilities(self, samples: np.ndarray) -> np.ndarray:
        """Of speech in each of the next blocks: float32 [n] to float32 [ceil(n / 512)].

        One call of the network for all of them; the last block is filled up with silence.
        """
        if not len(samples):
            return np.zeros(0, np.float32)
        padded = np.pad(samples.astype(np.float32, copy=False), (0, -len(samples) % BLOCK))
        return self._run(padded.reshape(-1, BLOCK))

    def _run(self, blocks: np.ndarray) -> np.ndarray:
        tails = np.concatenate([self._context[None], blocks[:, -_CONTEXT:]])
        inputs = np.concatenate([tails[:-1], blocks], axis=1)  # [blocks, context + block]
        self._context = tails[-1]
        found, self._h, self._c = self._session.run(
            None, {"input": inputs, "h": self._h, "c": self._c}
        )
        return found.reshape(-1)
