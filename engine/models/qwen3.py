"""Qwen3, dense (Yang et al., 2025): RMSNorm on each query and key head, a free head size."""

from functools import partial

from engine.models.base import Family
from engine.models.config import read_config

QWEN3 = Family(
    name="qwen3",
    hf_architecture="Qwen3ForCausalLM",
    gguf_architecture="qwen3",
    config=partial(read_config, family="qwen3", qk_norm=True),
)
