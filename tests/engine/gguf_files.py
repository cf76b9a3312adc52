"""Writing GGUF files as llama.cpp's converter does, and decoding their blocks independently.

The decoders follow the block formats' description (ggml-common.h, ggml-quants.c), not a library.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import (
    MODEL_ARCH_NAMES,
    GGMLQuantizationType,
    GGUFWriter,
    TokenType,
    get_tensor_name_map,
)
from gguf.quants import quantize

from tests.engine import tiny

Blocks = tuple[np.ndarray, str]  # uint8 rows as they lie in the file, and their type


def write_gguf(
    reference: Any,
    path: Path,
    kind: str = "F32",
    *,
    blocks: Mapping[str, Blocks] | None = None,
    skip: tuple[str, ...] = (),
    metadata: Callable[[GGUFWriter], None] | None = None,
) -> Path:
    """transformers' `reference` as a GGUF whose matrices are of `kind`; vectors stay F32.

    `blocks`: ready rows for some tensors, by Hugging Face name. `skip`: tensors to leave out.
    `metadata` adds fields after the usual ones.
    """
    config = reference.config
    writer = GGUFWriter(path, config.model_type)
    _write_config(writer, config)
    write_tokenizer(writer)
    if metadata:
        metadata(writer)
    arch = next(key for key, name in MODEL_ARCH_NAMES.items() if name == config.model_type)
    names = get_tensor_name_map(arch, config.num_hidden_layers)
    tied = config.tie_word_embeddings
    for name, tensor in reference.state_dict().items():
        if name in skip or (tied and name == "lm_head.weight"):
            continue
        heads = _permuted_heads(name, config)
        gguf_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert gguf_name
        rows, row_kind = (blocks or {}).get(name) or _encode(tensor, kind)
        writer.add_tensor(gguf_name, _permute(rows, heads), raw_dtype=_ggml_type(row_kind))
    if config.rope_parameters["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", _rope_factors(config))
    finish(writer)
    return path


def finish(writer: GGUFWriter) -> None:
    """Write everything and close the file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_tokenizer(writer: GGUFWriter) -> None:
    """The tiny tokenizer as metadata."""
    tokenizer = tiny.tokenizer()
    model = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    tokens = tokenizer.convert_ids_to_tokens(list(range(tiny.VOCAB)))
    kinds = dict.fromkeys(tiny.SPECIAL_TOKENS, TokenType.CONTROL)
    kinds |= dict.fromkeys(tiny.THINK_TOKENS, TokenType.USER_DEFINED)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([kinds.get(token, TokenType.NORMAL) for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in model["merges"]])
    writer.add_eos_token_id(tokens.index(tiny.EOS))
    writer.add_chat_template(tiny.CHAT_TEMPLATE)


def _write_config(writer: GGUFWriter, config: Any) -> None:
    heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])


def _ggml_type(kind: str) -> GGMLQuantizationType:
    return GGMLQuantizationType[kind]


def _encode(tensor: torch.Tensor, kind: str) -> Blocks:
    kind = kind if tensor.ndim == 2 else "F32"
    values = tensor.detach().float().numpy()
    if kind in ("F32", "F16"):
        return values.astype(np.float32 if kind == "F32" else np.float16), kind
    return quantize(values, _ggml_type(kind)), kind


def _permuted_heads(name: str, config: Any) -> int:
    """llama.cpp reorders query and key rows for its interleaved RoPE; of Llama only."""
    if config.model_type != "llama":
        return 0
    if "q_proj" in name:
        return int(config.num_attention_heads)
    return int(config.num_key_value_heads) if "k_proj" in name else 0


def _permute(rows: np.ndarray, heads: int) -> np.ndarray:
    """Row 2i of a head is row i of Hugging Face's, row 2i + 1 is row D/2 + i."""
    if not heads:
        return rows
    per_head = len(rows) // heads
    order = [i // 2 + (i % 2) * per_head // 2 for i in range(per_head)]
    return np.concatenate([rows[h * per_head :][order] for h in range(heads)])


def _rope_factors(config: Any) -> np.ndarray:
    """Divisors of RoPE's frequencies by Llama 3.1's rule, as llama.cpp's converter writes them."""
    rope, factors = config.rope_parameters, []
    trained = rope["original_max_position_embeddings"]
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    dim = config.head_dim
    for i in range(0, dim, 2):
        wavelength = 2 * math.pi * rope["rope_theta"] ** (i / dim)
        if wavelength < trained / high:
            factors.append(1.0)
        elif wavelength > trained / low:
            factors.append(rope["factor"])
        else:
            smooth = (trained / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(factors, dtype=np.float32)


# --- block formats: bytes of one block -> its values, float64 ---


def _halves(block: bytes, start: int, count: int) -> list[float]:
    return np.frombuffer(block, "<f2", count, start).astype(np.float64).tolist()


def _q8_0(block: bytes) -> list[float]:
    (d,) = _halves(block, 0, 1)
    return [d * (q - 256 if q > 127 else q) for q in block[2:]]


def _nibbles(block: bytes) -> list[int]:
    return [byte & 15 for byte in block] + [byte >> 4 for byte in block]


def _q4_0(block: bytes) -> list[float]:
    (d,) = _halves(block, 0, 1)
    return [d * (q - 8) for q in _nibbles(block[2:])]


def _q4_1(block: bytes) -> list[float]:
    d, m = _halves(block, 0, 2)
    return [d * q + m for q in _nibbles(block[4:])]


def _q4_k(block: bytes) -> list[float]:
    """256 values in 8 groups of 32, each with a 6-bit scale and a 6-bit minimum."""
    d, d_min = _halves(block, 0, 2)
    packed, quants = block[4:16], block[16:]
    values: list[float] = []
    for group in range(8):
        if group < 4:
            scale, minimum = packed[group] & 63, packed[group + 4] & 63
        else:
            scale = packed[group + 4] & 15 | (packed[group - 4] >> 6) << 4
            minimum = packed[group + 4] >> 4 | (packed[group] >> 6) << 4
        pair = quants[group // 2 * 32 :][:32]  # low nibbles are the even group, high the odd one
        nibbles = _nibbles(pair)[group % 2 * 32 :][:32]
        values += [d * scale * q - d_min * minimum for q in nibbles]
    return values


def _q6_k(block: bytes) -> list[float]:
    """256 values in 16 groups of 16 with an 8-bit scale each; 4 low bits apart from 2 high."""
    low, high = block[:128], block[128:192]
    scales = [s - 256 if s > 127 else s for s in block[192:208]]
    (d,) = _halves(block, 208, 1)
    values = []
    for i in range(256):
        half, quarter, lane = i // 128, i % 128 // 32, i % 32
        nibble = low[half * 64 + quarter % 2 * 32 + lane] >> quarter // 2 * 4 & 15
        top = high[half * 32 + lane] >> quarter * 2 & 3
        values.append(d * scales[i // 16] * ((nibble | top << 4) - 32))
    return values


# Type: (bytes of a block, its decoder).
BLOCK_FORMATS: dict[str, tuple[int, Callable[[bytes], list[float]]]] = {
    "Q8_0": (34, _q8_0),
    "Q4_0": (18, _q4_0),
    "Q4_1": (20, _q4_1),
    "Q4_K": (144, _q4_k),
    "Q6_K": (210, _q6_k),
}


def decode_rows(rows: np.ndarray, kind: str) -> np.ndarray:
    """float64 values of quantised `rows` (uint8 [n, bytes])."""
    size, decode = BLOCK_FORMATS[kind]
    return np.array(
        [
            [v for at in range(0, len(row), size) for v in decode(row[at : at + size])]
            for row in (bytes(row) for row in rows)
        ]
    )


def random_blocks(kind: str, rows: int, columns: int, seed: int) -> Blocks:
    """Valid random blocks of a K format: any bytes do, but the float16 scales must be tame."""
    size, _ = BLOCK_FORMATS[kind]
    generator = np.random.default_rng(seed)
    blocks = generator.integers(0, 256, (rows * columns // 256, size), dtype=np.uint8)
    scales = generator.uniform(1e-4, 4e-4, (len(blocks), 2)).astype("<f2").view(np.uint8)
    if kind == "Q4_K":
        blocks[:, :4] = scales
    else:
        blocks[:, -2:] = scales[:, :2]
    return blocks.reshape(rows, -1), kind
