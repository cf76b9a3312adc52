"""When did speech stop being audible? The clock of every latency starts there."""

from __future__ import annotations

import numpy as np

from audio.frames import STT_RATE_HZ

_PER_MS = STT_RATE_HZ // 1000
_FRAME = 8 * _PER_MS  # resolution of the acoustic end
_HANGOVER = 256 * _PER_MS // _FRAME  # frames that the detector may stay up after the last sound
_QUIET = 0.03  # of the utterance's loudest frame (-30 dB): below it no speech is audible
_ABOVE_FLOOR = 2.0  # times the noise that followed


def acoustic_end(samples: np.ndarray, detected_end: int) -> int:
    """The number of the sample at which speech stopped being audible, at most `detected_end`.

    The detector decides per block and hangs on for a while (measured: 42 ms late in the median,
    134 ms at most), which would make every latency look that much better than it is. So the end
    is where the level last stood out from the loudest part and from the noise that followed.
    """
    levels = _levels(samples[detected_end % _FRAME :])
    end = detected_end // _FRAME
    last = levels[max(0, end - _HANGOVER) : end]
    after = levels[end:]
    floor = float(np.median(after)) if len(after) else 0.0
    loud = np.flatnonzero(last > max(_QUIET * levels[:end].max(initial=0), _ABOVE_FLOOR * floor))
    if not len(loud):
        return detected_end
    return detected_end - (len(last) - 1 - int(loud[-1])) * _FRAME


def _levels(samples: np.ndarray) -> np.ndarray:
    """RMS of each whole frame: float32 [n]."""
    frames = samples[: len(samples) // _FRAME * _FRAME].reshape(-1, _FRAME)
    return np.sqrt(np.mean(np.square(frames), axis=1))
