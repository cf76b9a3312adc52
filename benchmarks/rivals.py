"""Other programs on the same weights and prompt, where they are installed.

`transformers`: its own `generate` with a static KV cache, which it compiles on CUDA. `llama.cpp`:
its C library, one call a token, through the package cyllama, on the model's GGUF file. Their time
per token includes whatever their own interface costs, since that is what a user of them pays.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.options import RIVALS
from benchmarks.subject import Subject
from benchmarks.timing import Reply, Side
from engine.models.base import Model
from engine.sampling import SamplingParams
from engine.weights import layout

_LLAMA_CONTEXT = 2048
_MODULES = {"transformers": "transformers", "llama.cpp": "cyllama"}


def open_rivals(
    asked: Sequence[str] | None, subject: Subject, prompt: list[int], tokens: int, threads: int
) -> Iterator[tuple[str, Side | str]]:
    """Each rival asked for (all with an empty list, none with None), or why it cannot compete."""
    for name in () if asked is None else asked or RIVALS:
        if importlib.util.find_spec(_MODULES[name]) is None:
            yield name, f"the package {_MODULES[name]} is not installed"
        elif name == "transformers":
            yield name, TransformersSide(transformers_twin(subject.model), prompt)
        else:
            path = getattr(subject.model.checkpoint, "path", None)
            if path is None or path.suffix != ".gguf":
                yield name, "it reads GGUF files, and this model does not come from one"
            elif subject.model.device.type != "cpu":
                yield name, "only its CPU build is driven here: add --device cpu"
            else:
                room = len(prompt) + tokens
                yield name, LlamaCppSide(str(path), prompt, room, threads)


@dataclass
class _Clock:
    """When each token was there, in seconds."""

    device: torch.device

    def __post_init__(self) -> None:
        self.times: list[float] = []

    def tick(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.times.append(time.perf_counter())


def _reply(tokens: list[int], times: list[float]) -> Reply:
    """`times` [tokens + 1]: the start, then each token."""
    return Reply(tokens, np.diff(np.array(times[1:])) * 1e3, None)


class TransformersSide:
    """transformers' `generate`, greedy, prompt and all, with a static cache."""

    name = "transformers"

    def __init__(self, twin: Any, prompt: list[int]) -> None:
        self._twin = twin
        self._prompt = torch.tensor([prompt], device=twin.device)

    def first_token_ms(self) -> float:
        _, times = self._generate(1)
        return (times[1] - times[0]) * 1e3

    def reply(self, params: SamplingParams) -> Reply:
        return _reply(*self._generate(params.max_tokens))

    @torch.inference_mode()
    def _generate(self, tokens: int) -> tuple[list[int], list[float]]:
        from transformers import StoppingCriteriaList

        clock = _Clock(self._prompt.device)
        going_on = torch.zeros(1, dtype=torch.bool, device=self._prompt.device)

        def look(ids: torch.Tensor, scores: torch.Tensor, **_: Any) -> torch.Tensor:
            clock.tick()
            return going_on

        clock.tick()
        out = self._twin.generate(
            self._prompt, attention_mask=torch.ones_like(self._prompt), max_new_tokens=tokens,
            do_sample=False, cache_implementation="static",
            stopping_criteria=StoppingCriteriaList([look]),
        )  # fmt: skip
        return out[0, self._prompt.shape[1] :].tolist(), clock.times


def transformers_twin(model: Model) -> Any:
    """transformers' model holding the very weights of `model`, in its dtype on its device."""
    import transformers

    c = model.config
    family = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}[c.family]
    sizes: dict[str, Any] = {} if family == "Qwen2" else {"head_dim": c.head_dim}
    config = getattr(transformers, f"{family}Config")(
        vocab_size=c.vocab, hidden_size=c.hidden, intermediate_size=c.intermediate,
        num_hidden_layers=c.layers, num_attention_heads=c.heads, num_key_value_heads=c.kv_heads,
        max_position_embeddings=c.max_positions, rms_norm_eps=c.rms_eps,
        rope_parameters={
            "rope_type": "default", **(c.rope_scaling or {}), "rope_theta": c.rope_theta,
        },
        tie_word_embeddings=c.tied, bos_token_id=None, eos_token_id=None, pad_token_id=None,
        **sizes,
    )  # fmt: skip
    twin = getattr(transformers, f"{family}ForCausalLM")(config)
    twin = twin.to(model.device, model.dtype).eval()
    state, stacked = {}, model.weights.tensors()
    for kind, parts in layout(c).items():
        for layer in range(c.layers) if "{layer}" in parts[0][0] else [None]:
            rows = stacked[kind] if layer is None else stacked[kind][layer]
            sizes_of_parts = [shape[0] for _, shape in parts]
            for (name, _), part in zip(parts, rows.split(sizes_of_parts), strict=True):
                state[name.format(layer=layer)] = part
    missing, unexpected = twin.load_state_dict(state, strict=False)
    if unexpected or set(missing) - {"lm_head.weight"}:
        raise RuntimeError(f"the twin does not match: {missing}, {unexpected}")
    twin.tie_weights()
    return twin


class LlamaCppSide:
    """llama.cpp with its default settings but for threads, greedy."""

    name = "llama.cpp"

    def __init__(self, path: str, prompt: list[int], room: int, threads: int) -> None:
        from cyllama.llama import llama_cpp as c

        c.disable_logging()
        c.ggml_backend_load_all()
        self._prompt = prompt
        self._model = c.LlamaModel(path)
        options = c.LlamaContextParams()
        # Its defaults are for prompts of up to 2,048 tokens; its context comes in blocks of 256.
        options.n_ctx = -(-max(room, _LLAMA_CONTEXT) // 256) * 256
        options.n_threads, options.n_threads_batch = threads, threads
        options.n_batch = max(len(prompt), options.n_batch)
        self._context = c.LlamaContext(self._model, options)
        self._batch = c.LlamaBatch(n_tokens=len(prompt), embd=0, n_seq_max=1)
        self._sampler = c.LlamaSampler(c.LlamaSamplerChainParams())
        self._sampler.add_greedy()

    def first_token_ms(self) -> float:
        _, times = self.generate(1)
        return (times[1] - times[0]) * 1e3

    def reply(self, params: SamplingParams) -> Reply:
        return _reply(*self.generate(params.max_tokens))

    def generate(self, count: int) -> tuple[list[int], list[float]]:
        """Prompt and `count` tokens: (tokens, seconds of the start and of each token)."""
        self._context.kv_cache_clear()
        tokens: list[int] = []
        clock = _Clock(torch.device("cpu"))
        clock.tick()
        pending, position = self._prompt, 0
        for _ in range(count):
            self._batch.set_batch(pending, position, False)  # logits of the last token only
            self._context.decode(self._batch)
            position += len(pending)
            tokens.append(int(self._sampler.sample(self._context, -1)))
            clock.tick()
            pending = tokens[-1:]
        return tokens, clock.times
