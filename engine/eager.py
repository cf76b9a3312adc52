"""The conventional path: one PyTorch operation after another, one launch for each, a host
synchronisation per token. What every tutorial does, and the baseline of every comparison.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F

from engine.base import DraftCounts, FinishReason, Token, check_prompt, finish_reason
from engine.drafted_run import (
    DraftedRun,
    Drafter,
    Drawn,
    ModelDrafter,
    NgramDrafter,
    draw_until_wrong,
)
from engine.kv_cache import KVCache
from engine.launches import count_launches
from engine.models.base import Model
from engine.models.rope import rope_table
from engine.sampling import SamplingParams, sample
from engine.speculation import Pace, Speculation

_PREFILL_CHUNK = 512  # bounds attention scores and MLP activations of a long prompt


class EagerEngine:
    """Kernel-per-op decoding on the CPU or on CUDA, in the model's dtype throughout."""

    name = "eager"
    speculates = ("ngram", "draft")

    def __init__(
        self, model: Model, threads: int | None = None, speculation: Speculation | None = None
    ) -> None:
        self.model = model
        self.weight_bytes_per_token = model.weight_bytes_per_token
        self._threads = threads
        self._rope = rope_table(model.config, model.config.max_positions, model.dtype, model.device)
        self.launches_per_step = self._count_launches()
        self._speculation = speculation
        self._pace = Pace(speculation.width if speculation else 1)
        self._drafter = self._make_drafter(threads)

    @staticmethod
    def unavailable() -> str | None:
        """PyTorch runs everywhere."""
        return None

    def prefill(self, cache: KVCache, token_ids: Sequence[int]) -> None:
        cache.require(len(token_ids))
        self._use_threads()
        for chunk in _chunks(token_ids):
            self._forward(cache, chunk)

    def decode(
        self, cache: KVCache, token_ids: Sequence[int], params: SamplingParams
    ) -> EagerRun | DraftedRun:
        check_prompt(self.model, cache, token_ids)
        self._use_threads()
        if self._speculation is None:
            return EagerRun(self, cache, token_ids, params)
        width = self._speculation.width
        return DraftedRun(self, self._drafter, self._pace, width, cache, token_ids, params)

    def close(self) -> None:
        """Release the drafter's engine, if it has one."""
        self._drafter.close()

    def logits(self, cache: KVCache, token_ids: Sequence[int]) -> torch.Tensor:
        """Append `token_ids` and return float32 logits [len(token_ids), vocab] for tests."""
        cache.require(len(token_ids))
        hidden = [self._forward(cache, chunk) for chunk in _chunks(token_ids)]
        return torch.cat([self._head(rows) for rows in hidden])

    def _count_launches(self) -> int:
        """Launches of one decode step, counted on a real one."""
        scratch = self.model.new_cache(2)
        self._forward(scratch, [0])
        return count_launches(
            lambda: self._head(self._forward(scratch, [0])).argmax(), self.model.device
        )

    def step(self, cache: KVCache, token_ids: Sequence[int]) -> torch.Tensor:
        """Append `token_ids`; float32 logits [vocab] after the last."""
        return self.rows(cache, token_ids, 1)[0]

    def rows(self, cache: KVCache, token_ids: Sequence[int], wanted: int) -> torch.Tensor:
        """Append `token_ids`; float32 logits [wanted, vocab] after the last `wanted` of them.

        `wanted` is 1 for a prompt of several chunks.
        """
        chunks = list(_chunks(token_ids))
        for chunk in chunks[:-1]:
            self._forward(cache, chunk)
        return self._head(self._forward(cache, chunks[-1])[-wanted:])

    def verify(
        self, cache: KVCache, token_ids: Sequence[int], draft: Sequence[int], params: SamplingParams
    ) -> list[Drawn]:
        """See `engine.drafted_run.Verifier`."""
        logits = self.rows(cache, [*token_ids, *draft], len(draft) + 1)
        cache.truncate(cache.length - len(draft))
        return draw_until_wrong(logits, cache, draft, params)

    def _make_drafter(self, threads: int | None) -> Drafter:
        draft_model = self._speculation.draft_model if self._speculation else None
        if draft_model is None:
            return NgramDrafter()
        return ModelDrafter(EagerEngine(draft_model, threads))

    def _use_threads(self) -> None:
        if self._threads and self.model.device.type == "cpu":
            torch.set_num_threads(self._threads)

    @torch.inference_mode()
    def _head(self, hidden: torch.Tensor) -> torch.Tensor:
        w, c = self.model.weights, self.model.config
        return F.linear(F.rms_norm(hidden, (c.hidden,), w.norm, c.rms_eps), w.lm_head).float()

    @torch.inference_mode()
    def _forward(self, cache: KVCache, token_ids: Sequence[int]) -> torch.Tensor:
        """Run `token_ids` through all layers; hidden states [tokens, hidden]."""
        w, c = self.model.weights, self.model.config
        start, end = cache.length, cache.length + len(token_ids)
        ids = torch.tensor(token_ids, device=self.model.device)
        cos, sin = (table[start:end] for table in self._rope)
        mask = _causal_mask(start, end, self.model.device) if len(token_ids) > 1 else None
        x = F.embedding(ids, w.embed)
        for layer in range(c.layers):
            h = F.rms_norm(x, (c.hidden,), w.attn_norm[layer], c.rms_eps)
            attended = self._attention(layer, h, cos, sin, mask, cache, start, end)
            x = x + F.linear(attended, w.o[layer])
            h = F.rms_norm(x, (c.hidden,), w.mlp_norm[layer], c.rms_eps)
            gate, up = F.linear(h, w.gate_up[layer]).chunk(2, dim=-1)
            x = x + F.linear(F.silu(gate) * up, w.down[layer])
        cache.token_ids.extend(token_ids)
        return x

    def _attention(
        self,
        layer: int,
        h: torch.Tensor,  # [tokens, hidden]
        cos: torch.Tensor,  # [tokens, head_dim]
        sin: torch.Tensor,
        mask: torch.Tensor | None,  # [tokens, end], True where attended
        cache: KVCache,
        start: int,
        end: int,
    ) -> torch.Tensor:  # [tokens, q_size]
        w, c = self.model.weights, self.model.config
        bias = None if w.qkv_bias is None else w.qkv_bias[layer]
        qkv = F.linear(h, w.qkv[layer], bias).view(len(h), -1, c.head_dim).transpose(0, 1)
        q, k, v = qkv.split((c.heads, c.kv_heads, c.kv_heads))  # [heads, tokens, head_dim]
        if w.q_norm is not None and w.k_norm is not None:
            q = F.rms_norm(q, (c.head_dim,), w.q_norm[layer], c.rms_eps)
            k = F.rms_norm(k, (c.head_dim,), w.k_norm[layer], c.rms_eps)
        cache.k[layer, :, start:end] = _rotate(k, cos, sin)
        cache.v[layer, :, start:end] = v
        out = F.scaled_dot_product_attention(
            _rotate(q, cos, sin)[None],
            cache.k[None, layer, :, :end],
            cache.v[None, layer, :, :end],
            attn_mask=mask,
            enable_gqa=c.heads != c.kv_heads,
        )
        return out[0].transpose(0, 1).reshape(len(h), c.q_size)


class EagerRun:
    """One reply of the eager engine; see `engine.base.DecodeRun`."""

    def __init__(
        self, engine: EagerEngine, cache: KVCache, token_ids: Sequence[int], params: SamplingParams
    ) -> None:
        self.finish_reason: FinishReason | None = None
        self.start_ns = time.perf_counter_ns()
        self.prefill_end_ns: int | None = None
        self.launches = 0
        self.drafts: DraftCounts | None = None
        self._engine, self._cache, self._params = engine, cache, params
        self._pending = list(token_ids)
        self._stop = threading.Event()

    def stop(self) -> None:
        self._stop.set()

    def __iter__(self) -> Iterator[Token]:
        cache, params, count = self._cache, self._params, 0
        while self.finish_reason is None:
            if self._stop.is_set():
                self.finish_reason = "stopped"
                return
            logits = self._engine.step(cache, self._pending)
            if self.prefill_end_ns is None:
                self.prefill_end_ns = time.perf_counter_ns()
            token_id, logprob = sample(logits, params, cache.length, cache.token_ids)
            token = Token(token_id, time.perf_counter_ns(), logprob)
            count += 1
            self.launches += self._engine.launches_per_step
            self._pending = [token_id]
            self.finish_reason = finish_reason(token_id, count, cache, params)
            yield token


def _chunks(token_ids: Sequence[int]) -> Iterator[list[int]]:
    for start in range(0, len(token_ids), _PREFILL_CHUNK):
        yield list(token_ids[start : start + _PREFILL_CHUNK])


def _causal_mask(start: int, end: int, device: torch.device) -> torch.Tensor:
    """[end - start, end]: row i, at position start + i, attends to positions up to its own."""
    positions = torch.arange(end, device=device)
    return positions[None, :] <= positions[start:, None]


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin
