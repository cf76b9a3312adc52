"""Qwen2 and Qwen2.5 (Yang et al., 2024): Llama with biases on query, key and value."""

from functools import partial

from engine.models.base import Family
from engine.models.config import read_config

QWEN2 = Family(
    name="qwen2",
    hf_architecture="Qwen2ForCausalLM",
    gguf_architecture="qwen2",
    config=partial(read_config, family="qwen2", qkv_bias=True),
)
