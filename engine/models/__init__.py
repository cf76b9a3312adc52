"""The model families: one file each, one line here."""

from engine.errors import UnpausedError
from engine.models.base import Family
from engine.models.llama import LLAMA
from engine.models.qwen2 import QWEN2
from engine.models.qwen3 import QWEN3

FAMILIES: tuple[Family, ...] = (LLAMA, QWEN2, QWEN3)


def family_of(architecture: str) -> Family:
    """The family of a Hugging Face or GGUF architecture name, or `UnpausedError`."""
    for family in FAMILIES:
        if architecture in (family.hf_architecture, family.gguf_architecture):
            return family
    known = ", ".join(family.hf_architecture for family in FAMILIES)
    raise UnpausedError(f"unsupported architecture {architecture!r}; supported: {known}")
