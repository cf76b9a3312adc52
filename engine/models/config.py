"""Reading a Hugging Face `config.json` that follows the Llama layout, checked before any work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.errors import UnpausedError
from engine.models.base import ModelConfig

_LLAMA3_CONSTANTS = (
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    "original_max_position_embeddings",
)
_ROPE_TYPES = ("default", "llama3", "factors")  # "factors": per-frequency divisors, from GGUF


def read_config(
    raw: Mapping[str, Any], family: str, *, qkv_bias: bool = False, qk_norm: bool = False
) -> ModelConfig:
    """A `ModelConfig` from Hugging Face's names. Raises `UnpausedError` for what is not handled."""
    try:
        heads, hidden = int(raw["num_attention_heads"]), int(raw["hidden_size"])
        config = ModelConfig(
            family=family,
            layers=int(raw["num_hidden_layers"]),
            hidden=hidden,
            intermediate=int(raw["intermediate_size"]),
            heads=heads,
            kv_heads=int(raw.get("num_key_value_heads") or heads),
            head_dim=int(raw.get("head_dim") or hidden // max(heads, 1)),
            vocab=int(raw["vocab_size"]),
            max_positions=int(raw.get("max_position_embeddings") or 2048),
            rms_eps=float(raw.get("rms_norm_eps", 1e-6)),
            rope_theta=_rope_theta(raw),
            rope_scaling=_rope_scaling(raw, family),
            tied=bool(raw.get("tie_word_embeddings", False)),
            qkv_bias=qkv_bias,
            qk_norm=qk_norm,
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UnpausedError(f"the {family} model's config lacks or garbles {error}") from error
    _check(raw, config)
    return config


def _rope_theta(raw: Mapping[str, Any]) -> float:
    # transformers 5 moved rope_theta into rope_parameters; both forms are in circulation.
    parameters = raw.get("rope_parameters") or {}
    return float(parameters.get("rope_theta") or raw.get("rope_theta") or 10000.0)


def _rope_scaling(raw: Mapping[str, Any], family: str) -> Mapping[str, Any] | None:
    scaling = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind not in _ROPE_TYPES:
        raise UnpausedError(
            f"this {family} model scales RoPE by {kind!r}; supported: default and llama3"
        )
    if kind == "llama3":
        for name in _LLAMA3_CONSTANTS:
            float(scaling[name])
    return None if kind == "default" else scaling


def _check(raw: Mapping[str, Any], config: ModelConfig) -> None:
    problems = [
        (raw.get("hidden_act", "silu") != "silu", f"activation {raw.get('hidden_act')!r}"),
        (bool(raw.get("mlp_bias")), "biases in the MLP"),
        (bool(raw.get("use_sliding_window")), "sliding-window attention"),
        (config.family != "qwen2" and bool(raw.get("attention_bias")), "attention biases"),
        (config.kv_heads < 1 or config.heads % max(config.kv_heads, 1) != 0,
         f"{config.heads} query heads over {config.kv_heads} key heads"),
        (config.head_dim % 2 != 0, f"an odd head size ({config.head_dim})"),
        (min(config.layers, config.heads, config.hidden, config.intermediate, config.vocab) < 1,
         "a size below 1"),
    ]  # fmt: skip
    for wrong, what in problems:
        if wrong:
            raise UnpausedError(f"this {config.family} model has {what}, which is not supported")
