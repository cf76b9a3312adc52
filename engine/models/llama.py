"""Llama 2 and 3 (Touvron et al., 2023; Grattafiori et al., 2024) and SmolLM2, which shares it."""

from functools import partial

from engine.models.base import Family
from engine.models.config import read_config

LLAMA = Family(
    name="llama",
    hf_architecture="LlamaForCausalLM",
    gguf_architecture="llama",
    config=partial(read_config, family="llama"),
    gguf_permutes_qk=True,
)
