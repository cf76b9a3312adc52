"""Tiny seeded models of every family, made by transformers, and the tokenizer they share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as FastTokenizer
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from engine.kv_cache import KVCache
from engine.models.base import Model

CONTEXT = 200  # positions of every tiny model: a prompt of 65 and 128 tokens fit
VOCAB = 384
EOS, IM_START, IM_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL_TOKENS = (EOS, IM_START, IM_END)
THINK_TOKENS = ("<think>", "</think>")
# SmolLM2's template: the default system prompt comes where no system message is given.
CHAT_TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are tiny.<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_CORPUS = [
    "the quick brown fox jumps over the lazy dog while it is raining in the quiet town",
    "system user assistant hello there how are you today I am fine thank you and you",
    "a small model that answers every question with another question about the weather",
    "seeded numbers 12345 67890 and the sum of all things, then nothing more than this",
]


@dataclass
class Tiny:
    """One tiny model: transformers' own, the folder it was saved to, and ours loaded from it."""

    reference: Any  # float32
    folder: Path
    model: Model  # float32


def tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE of `VOCAB` ids: special tokens, bytes, merges; one seedless training run."""
    fast = FastTokenizer(models.BPE())
    fast.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    fast.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB - len(THINK_TOKENS),
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    fast.train_from_iterator(_CORPUS, trainer)
    fast.add_tokens([AddedToken(text, normalized=False) for text in THINK_TOKENS])
    assert fast.get_vocab_size() == VOCAB
    return PreTrainedTokenizerFast(
        tokenizer_object=fast, eos_token=EOS, chat_template=CHAT_TEMPLATE
    )


def shape_of(
    hidden: int, intermediate: int, heads: int, kv_heads: int, tied: bool, **more: Any
) -> dict[str, Any]:
    """A tiny model's arguments to transformers' configs."""
    return {
        "vocab_size": VOCAB,
        "num_hidden_layers": 2,
        "max_position_embeddings": CONTEXT,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "tie_word_embeddings": tied,
        **more,
    }


_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def _rope(theta: float) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": theta}


# Every size is a multiple of 32, so that each can be quantised in blocks.
FAMILIES: dict[str, tuple[type, type, dict[str, Any]]] = {
    "llama": (LlamaForCausalLM, LlamaConfig, shape_of(64, 96, 4, 2, False)),
    # SmolLM2 in small: nine heads over three, a tied head, no size a power of two.
    "smollm2": (
        LlamaForCausalLM,
        LlamaConfig,
        shape_of(288, 416, 9, 3, True, rope_parameters=_rope(1e5)),
    ),
    "llama2": (LlamaForCausalLM, LlamaConfig, shape_of(96, 160, 6, 6, False, rms_norm_eps=1e-5)),
    "llama3": (
        LlamaForCausalLM,
        LlamaConfig,
        shape_of(64, 96, 2, 1, True, rope_parameters=_LLAMA3_ROPE),
    ),
    "qwen2": (
        Qwen2ForCausalLM,
        Qwen2Config,
        shape_of(96, 160, 6, 2, True, rope_parameters=_rope(1e6)),
    ),
    "qwen3": (
        Qwen3ForCausalLM,
        Qwen3Config,
        shape_of(64, 96, 4, 2, False, head_dim=32, rope_parameters=_rope(1e6)),
    ),
}


def make_reference(family: str, seed: int = 0, **changes: Any) -> Any:
    """transformers' model of `FAMILIES[family]`, float32, every parameter drawn from `seed`.

    Also biases and norms, which transformers would make 0 and 1. The head never favours a token
    that is not ASCII text, so that greedy replies are text and end by length.
    """
    model_class, config_class, arguments = FAMILIES[family]
    model = model_class(config_class(**(arguments | changes))).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if name == "model.norm.weight":
                parameter.copy_(3 + 0.5 * noise)  # logits about as far apart as a real model's
            elif name.endswith("norm.weight"):
                parameter.copy_(1 + 0.2 * noise)
            elif parameter.ndim == 1:
                parameter.copy_(0.5 * noise)
            else:
                parameter.copy_(noise * (2.0 / parameter.shape[1]) ** 0.5)
        model.get_output_embeddings().weight[mute_ids()] = 0.0
    return model


def mute_ids() -> list[int]:
    """Ids that tiny models do not say: special tokens, tags, bytes of other than ASCII."""
    table = tokenizer().convert_ids_to_tokens(list(range(VOCAB)))
    spoken = {"Ġ", "Ċ"}
    return [
        index
        for index, text in enumerate(table)
        if text in (*SPECIAL_TOKENS, *THINK_TOKENS)
        or not all(char in spoken or char.isascii() for char in text)
    ]


def save(reference: Any, folder: Path, max_shard_size: str = "5GB") -> Path:
    """`reference` as a Hugging Face folder with the tiny tokenizer."""
    reference.save_pretrained(folder, max_shard_size=max_shard_size)
    tokenizer().save_pretrained(folder)
    return folder


def random_ids(count: int, seed: int = 0, vocab: int = VOCAB) -> list[int]:
    """`count` seeded token ids."""
    generator = torch.Generator().manual_seed(seed)
    return [int(i) for i in torch.randint(0, vocab, (count,), generator=generator)]


def poison(cache: KVCache, seed: int | None = None) -> KVCache:
    """Fill what `cache` does not yet hold with NaN, or with seeded noise; returns it."""
    for tensor in (cache.k, cache.v):
        free = tensor[:, :, cache.length :]
        if seed is None:
            free.fill_(float("nan"))
        else:
            noise = torch.randn(free.shape, generator=torch.Generator().manual_seed(seed))
            free.copy_(noise.to(free) * 100)
    return cache


@torch.inference_mode()
def reference_logits(reference: Any, token_ids: list[int]) -> torch.Tensor:
    """transformers' logits [len(token_ids), vocab] in one go."""
    logits: torch.Tensor = reference(torch.tensor([token_ids])).logits[0]
    return logits
