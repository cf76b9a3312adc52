"""What a decoder-only transformer is made of, whatever its family.

Weights are stacked per kind across layers, so that layer `l` of a kind is one contiguous slice
and a kernel needs one pointer a kind. Names follow Hugging Face's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import torch

from engine.kv_cache import KVCache

if TYPE_CHECKING:
    from engine.checkpoint import Checkpoint
    from engine.tokenizer import Tokenizer


@dataclass(frozen=True)
class ModelConfig:
    """Shape and constants of a model. Sizes are element counts."""

    family: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    max_positions: int
    rms_eps: float
    rope_theta: float
    rope_scaling: Mapping[str, Any] | None = None  # Hugging Face's `rope_scaling`, llama3 only
    tied: bool = False  # the LM head is the embedding
    qkv_bias: bool = False
    qk_norm: bool = False

    @property
    def q_size(self) -> int:
        """Rows of the query projection."""
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Rows of the key projection, and of the value projection."""
        return self.kv_heads * self.head_dim

    @property
    def qkv_size(self) -> int:
        """Rows of query, key and value projection together."""
        return self.q_size + 2 * self.kv_size


@dataclass(frozen=True)
class Family:
    """One model family: what sets it apart from the Llama layout, as data.

    `config` reads a Hugging Face `config.json`; the GGUF reader makes its metadata look like one
    under the names in `gguf_architecture`.
    """

    name: str
    hf_architecture: str
    gguf_architecture: str
    config: Callable[[Mapping[str, Any]], ModelConfig]
    gguf_permutes_qk: bool = False  # rows of q and k lie interleaved in GGUF files


@dataclass(frozen=True)
class Weights:
    """All parameters. L = layers, H = hidden, I = intermediate, D = head_dim, V = vocab."""

    embed: torch.Tensor  # [V, H]
    attn_norm: torch.Tensor  # [L, H]
    qkv: torch.Tensor  # [L, qkv_size, H]: query rows, then key rows, then value rows
    qkv_bias: torch.Tensor | None  # [L, qkv_size]
    q_norm: torch.Tensor | None  # [L, D]
    k_norm: torch.Tensor | None  # [L, D]
    o: torch.Tensor  # [L, H, q_size]
    mlp_norm: torch.Tensor  # [L, H]
    gate_up: torch.Tensor  # [L, 2I, H]: gate rows, then up rows
    down: torch.Tensor  # [L, H, I]
    norm: torch.Tensor  # [H]
    lm_head: torch.Tensor  # [V, H]; the very tensor `embed` when tied

    def tensors(self) -> dict[str, torch.Tensor]:
        """The distinct tensors by name: a tied head is listed once, as `embed`."""
        named = {f.name: getattr(self, f.name) for f in fields(self)}
        if self.lm_head is self.embed:
            del named["lm_head"]
        return {name: tensor for name, tensor in named.items() if tensor is not None}


class Model:
    """A loaded model: configuration, weights, tokenizer, and where they live.

    `checkpoint` is what it was loaded from, still open, for engines that read weights in the
    format of the file; None for models made in memory.
    """

    def __init__(
        self,
        name: str,
        config: ModelConfig,
        weights: Weights,
        tokenizer: Tokenizer | None = None,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        self.name = name
        self.config = config
        self.weights = weights
        self.checkpoint = checkpoint
        self._tokenizer = tokenizer

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer; models made of random weights for tests have none."""
        if self._tokenizer is None:
            raise ValueError(f"model {self.name} has no tokenizer")
        return self._tokenizer

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of weights, activations and KV cache."""
        return self.weights.embed.dtype

    @property
    def device(self) -> torch.device:
        """Where weights and KV cache live."""
        return self.weights.embed.device

    @property
    def weight_bytes_per_token(self) -> int:
        """Bytes of weights that decoding one token has to read: an untied embedding is a lookup."""
        tensors = self.weights.tensors()
        if self.weights.lm_head is not self.weights.embed:
            del tensors["embed"]
        return sum(tensor.nbytes for tensor in tensors.values())

    def new_cache(self, max_positions: int | None = None) -> KVCache:
        """An empty KV cache for this model, by default as long as the model's context."""
        c = self.config
        positions = min(max_positions or c.max_positions, c.max_positions)
        return KVCache(c.layers, c.kv_heads, positions, c.head_dim, self.dtype, self.device)
