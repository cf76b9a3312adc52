"""What one reply cost, from the engine's own timestamps. Terms, defined once:

TTFT (time to first token)   first token's time - start of the prompt's processing [ms]
ITL  (inter-token latency)   t[i] - t[i-1] of neighbouring tokens [ms]
hidden tokens                tokens decoded before the first that is said; they count as tokens
hidden ms                    how long the first word waited for them: first token after them's
                             time - first token's time [ms]
TPOT (time per output token) the distribution of a reply's ITLs: p50, p99, max [ms]
tokens/s                     (tokens - 1) / (last token's time - first token's time)
KV bytes                     bytes of keys and values held when the reply ended
prefill tokens/s             prompt tokens not found in the KV cache / TTFT
bandwidth share              bytes one token must read / (TPOT p50 x measured read bandwidth),
                             where the bytes are all weights once plus the keys and values held
launches per token           kernels (CUDA) or framework operations (CPU) dispatched for decoding
                             / tokens, as the engine counted them

With speculative decoding (engine/speculation.py) one pass over the weights may make several tokens
certain. They arrive together, so the first of them has the whole pass as its ITL and the others
have 0: TPOT is told of tokens as they arrive, and its p50 is 0 where most came with another.

passes                       over the weights, after the prompt's
drafted, accepted            tokens fed before they were known; those of them that were right
acceptance                   accepted / drafted, None where nothing was drafted
tokens per pass              (passes + accepted) / passes: a pass gives one token, and one more for
                             each draft that was right
bandwidth share              as above with the p50 of the passes' own times in place of TPOT's: it
                             counts passes, not tokens (a draft model's reading is left out)

Percentiles interpolate linearly (NumPy's default), so p99 of few tokens leans on the maximum.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from engine.base import DraftCounts


@dataclass
class ReplyMetrics:
    """Raw counts of one reply; every figure is derived. Times are engine nanoseconds."""

    engine: str = ""
    model: str = ""
    start_ns: int = 0
    token_times_ns: list[int] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0  # prompt tokens whose keys and values were already held
    hidden_tokens: int = 0  # decoded before the first token that is said
    trimmed_turns: int = 0  # oldest turns left out so that the prompt fits the context
    finish_reason: str | None = None
    launches: int = 0
    drafts: DraftCounts | None = None  # None where each token took a pass of its own
    weight_bytes_per_token: int = 0
    kv_bytes_per_position: int = 0

    @property
    def tokens(self) -> int:
        """Tokens sampled, the end marker included."""
        return len(self.token_times_ns)

    @property
    def prefill_tokens(self) -> int:
        """Prompt tokens that had to be processed."""
        return self.prompt_tokens - self.cached_tokens

    @property
    def held_positions(self) -> int:
        """Positions of the KV cache in use: the last token sampled has not been fed."""
        return self.prompt_tokens + max(self.tokens - 1, 0)

    @property
    def ttft_ms(self) -> float | None:
        """Time to first token, or None before there is one."""
        return (self.token_times_ns[0] - self.start_ns) / 1e6 if self.token_times_ns else None

    @property
    def hidden_ms(self) -> float:
        """How much later the first word came for the hidden tokens before it; 0 without any."""
        times = self.token_times_ns
        if not self.hidden_tokens or not times:
            return 0.0
        return (times[min(self.hidden_tokens, len(times) - 1)] - times[0]) / 1e6

    def itl_ms(self) -> np.ndarray:
        """Inter-token latencies: float64 [tokens - 1]."""
        return np.diff(np.array(self.token_times_ns, dtype=np.int64)) / 1e6

    def latencies_ms(self) -> np.ndarray:
        """Each token's own latency, the first one's being TTFT: float64 [tokens]."""
        return np.diff(np.array([self.start_ns, *self.token_times_ns], dtype=np.int64)) / 1e6

    def tpot_ms(self) -> dict[str, float | None]:
        """TPOT as {"p50", "p99", "max"}; None until there are two tokens."""
        itl = self.itl_ms()
        if not len(itl):
            return {"p50": None, "p99": None, "max": None}
        p50, p99 = np.percentile(itl, [50, 99])
        return {"p50": float(p50), "p99": float(p99), "max": float(itl.max())}

    @property
    def tokens_per_s(self) -> float | None:
        """Decode rate, or None until there are two tokens."""
        times = self.token_times_ns
        elapsed_ns = times[-1] - times[0] if len(times) > 1 else 0
        return (len(times) - 1) / elapsed_ns * 1e9 if elapsed_ns else None

    @property
    def pace_ms(self) -> float | None:
        """What a token took: TPOT p50, or the mean where several came at once."""
        if self.drafts is None:
            return self.tpot_ms()["p50"]
        return 1e3 / self.tokens_per_s if self.tokens_per_s else None

    @property
    def acceptance(self) -> float | None:
        """Share of the drafted tokens that were right, or None where none was fed."""
        counts = self.drafts
        return counts.accepted / counts.drafted if counts and counts.drafted else None

    @property
    def tokens_per_pass(self) -> float | None:
        """Tokens that a pass over the weights made certain; None without speculation."""
        counts = self.drafts
        if counts is None or not counts.passes:
            return None
        return (counts.passes + counts.accepted) / counts.passes

    def bandwidth_share(self, read_bytes_per_s: float) -> float | None:
        """Share of `read_bytes_per_s`, the device's measured ceiling, that decoding used."""
        times_ms = self.itl_ms()
        if self.drafts is not None:
            times_ms = times_ms[times_ms > 0]  # tokens of one pass share its moment
        p50 = float(np.median(times_ms)) if len(times_ms) else 0.0
        if not p50:
            return None
        positions = self.prompt_tokens + self.tokens / 2
        needed_bytes = self.weight_bytes_per_token + positions * self.kv_bytes_per_position
        return needed_bytes / (p50 / 1e3 * read_bytes_per_s)

    def as_dict(self) -> dict[str, Any]:
        """Every figure under its name, JSON-ready, milliseconds rounded to microseconds."""
        ttft_ms, prefill_rate = self.ttft_ms, None
        if ttft_ms:
            prefill_rate = self.prefill_tokens / ttft_ms * 1e3
        return {
            "engine": self.engine,
            "model": self.model,
            "tokens": self.tokens,
            "ttft_ms": _rounded(ttft_ms),
            "tpot_ms": {name: _rounded(value) for name, value in self.tpot_ms().items()},
            "tokens_per_s": _rounded(self.tokens_per_s),
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "prefill_tokens": self.prefill_tokens,
            "prefill_tokens_per_s": _rounded(prefill_rate),
            "hidden_tokens": self.hidden_tokens,
            "hidden_ms": _rounded(self.hidden_ms),
            "trimmed_turns": self.trimmed_turns,
            "finish_reason": self.finish_reason,
            "launches_per_token": _rounded(self.launches / self.tokens if self.tokens else None),
            "speculation": self._speculation(),
            "weight_bytes_per_token": self.weight_bytes_per_token,
            "kv_bytes": self.held_positions * self.kv_bytes_per_position,
        }

    def _speculation(self) -> dict[str, Any] | None:
        """What drafts did; None where none were asked for."""
        if self.drafts is None:
            return None
        return {
            **asdict(self.drafts),
            "acceptance": _rounded(self.acceptance),
            "tokens_per_pass": _rounded(self.tokens_per_pass),
        }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
