"""The one KV cache layout that every engine reads and writes.

Keys (after RoPE) and values lie as [layer, kv_head, position, head_dim], contiguous, so one
head's history is one stretch of memory: what decode attention streams. The cache also remembers
which tokens it holds, which is all that prefix reuse and a change of engine need.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.errors import UnpausedError


class KVCache:
    """Keys and values of one conversation.

    `k`, `v`: [layers, kv_heads, max_positions, head_dim] in the model's dtype on its device.
    `token_ids`: the tokens whose keys and values are valid, in order; positions beyond
    `length` hold anything and are never read.
    """

    def __init__(
        self,
        layers: int,
        kv_heads: int,
        max_positions: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ) -> None:
        shape = (layers, kv_heads, max_positions, head_dim)
        self.k = torch.empty(shape, dtype=dtype, device=device)
        self.v = torch.empty(shape, dtype=dtype, device=device)
        self.token_ids: list[int] = []

    @property
    def length(self) -> int:
        """Positions filled."""
        return len(self.token_ids)

    @property
    def max_positions(self) -> int:
        """Positions there are."""
        return self.k.shape[2]

    @property
    def free(self) -> int:
        """Positions left."""
        return self.max_positions - self.length

    @property
    def bytes_per_position(self) -> int:
        """Bytes of keys and values that one position takes over all layers."""
        layers, kv_heads, _, head_dim = self.k.shape
        return 2 * layers * kv_heads * head_dim * self.k.element_size()

    def require(self, positions: int) -> None:
        """Raise `UnpausedError` unless `positions` more fit."""
        if positions > self.free:
            raise UnpausedError(
                f"the prompt needs {self.length + positions} positions but the context holds "
                f"{self.max_positions}: shorten it or start with a larger --context"
            )

    def truncate(self, length: int) -> None:
        """Forget everything from position `length` on; nothing moves."""
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot truncate a cache of {self.length} positions to {length}")
        del self.token_ids[length:]

    def common_prefix(self, token_ids: Sequence[int]) -> int:
        """How many leading tokens of `token_ids` the cache already holds."""
        for i, (held, wanted) in enumerate(zip(self.token_ids, token_ids, strict=False)):
            if held != wanted:
                return i
        return min(self.length, len(token_ids))

    def same_layout(self, other: KVCache) -> bool:
        """Whether the two differ at most in how many positions they hold."""
        mine, theirs = list(self.k.shape), list(other.k.shape)
        mine[2] = theirs[2] = 0
        return (mine, self.k.dtype, self.k.device) == (theirs, other.k.dtype, other.k.device)

    def resized(self, max_positions: int) -> KVCache:
        """A cache like this one, empty, with room for `max_positions`."""
        layers, kv_heads, _, head_dim = self.k.shape
        return KVCache(layers, kv_heads, max_positions, head_dim, self.k.dtype, self.k.device)
