"""Text to token ids and back: the only place, with `generate` and `conversation`, that sees text.

transformers loads tokenizers and runs chat templates. A GGUF file carries its vocabulary in
metadata; byte-level BPE is rebuilt from it with the tokenizers library, because transformers'
own conversion drops the digit splitting that SmolLM2 was trained with.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as FastTokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.decoders import DecodeStream
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from engine.errors import UnpausedError

if TYPE_CHECKING:
    from engine.checkpoint import Checkpoint
    from engine.gguf_file import GGUFCheckpoint

Message = dict[str, str]  # {"role": "system" | "user" | "assistant", "content": text}

_CONTROL, _USER_DEFINED = 3, 4  # GGUF token types
_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_SPLIT = _LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")
_LLAMA3 = ("llama-bpe", "llama3", "llama-v3")  # names of one pre-tokenizer
_END_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "<|endoftext|>", "</s>")


class Tokenizer:
    """Encodes, decodes and renders chats for one model."""

    def __init__(self, inner: PreTrainedTokenizerFast) -> None:
        self._inner = inner
        self._fast: FastTokenizer = inner.backend_tokenizer

    @property
    def stop_ids(self) -> frozenset[int]:
        """Ids that end a reply: the declared end and every known end-of-turn marker."""
        vocabulary = self._inner.get_added_vocab()
        ids = {vocabulary[text] for text in _END_OF_TURN if text in vocabulary}
        if self._inner.eos_token_id is not None:
            ids.add(self._inner.eos_token_id)
        return frozenset(ids)

    @property
    def has_chat_template(self) -> bool:
        """Whether the model was tuned for chats; a base model has no template."""
        return bool(self._inner.chat_template)

    def encode(self, text: str) -> list[int]:
        """Ids of `text`, special tokens recognised where they are written, none added."""
        return self._fast.encode(text, add_special_tokens=False).ids

    def encode_prompt(self, text: str) -> list[int]:
        """Ids of a plain prompt, with what the model expects at its start (BOS where used)."""
        return self._fast.encode(text).ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of `token_ids` without special tokens."""
        return self._fast.decode(list(token_ids), skip_special_tokens=True)

    def decode_stream(self) -> DecodeStream:
        """An incremental decoder: `.step(fast, id)` gives text once characters are whole."""
        return DecodeStream(skip_special_tokens=True)

    def step(self, stream: DecodeStream, token_id: int) -> str:
        """Feed one id to `stream`; "" while a multi-byte character is incomplete."""
        return stream.step(self._fast, token_id) or ""

    def render(self, messages: Sequence[Message], **template_options: Any) -> str:
        """The chat as the model's prompt, ending where the assistant is to speak.

        Without a system message the template's own default is used: a different one makes the
        small models worse. `template_options` go to the template (`enable_thinking=False`).
        """
        if not self.has_chat_template:
            return "".join(map(_dialogue_line, messages)) + "Assistant:"
        rendered = self._inner.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=True, **template_options
        )
        return str(rendered)


def _dialogue_line(message: Message) -> str:
    # A reply to "Assistant:" begins with its own space and is repeated as it was said, so that
    # the next prompt goes on from the same tokens.
    content = message["content"]
    space = "" if content.startswith((" ", "\n")) else " "
    return f"{message['role'].capitalize()}:{space}{content}\n"


def load_tokenizer(checkpoint: Checkpoint) -> Tokenizer:
    """The tokenizer that belongs to `checkpoint`. Raises `UnpausedError` when there is none."""
    if hasattr(checkpoint, "field"):
        return Tokenizer(_from_gguf(checkpoint))  # type: ignore[arg-type]
    return Tokenizer(_from_folder(checkpoint.path))


def _from_folder(folder: Path) -> PreTrainedTokenizerFast:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # transformers raises many kinds for missing or broken files
        reason = " ".join(str(error).split()) or type(error).__name__
        if not (folder / "tokenizer.json").exists():
            reason = "there is no tokenizer.json in it"
        raise UnpausedError(f"{folder} has no usable tokenizer: {reason}") from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise UnpausedError(f"{folder} has no tokenizer.json: only fast tokenizers are supported")
    return tokenizer


def _from_gguf(checkpoint: GGUFCheckpoint) -> PreTrainedTokenizerFast:
    kind = checkpoint.field("tokenizer.ggml.model", "none")
    tokens: list[str] = checkpoint.field("tokenizer.ggml.tokens", [])
    if not tokens:
        raise UnpausedError(f"{checkpoint.path.name} carries no tokenizer")
    if kind == "gpt2":
        fast = _byte_level_bpe(checkpoint, tokens)
    elif kind == "llama":
        fast = _sentencepiece(checkpoint, tokens)
    else:
        raise UnpausedError(
            f"{checkpoint.path.name} has a {kind!r} tokenizer; supported: gpt2 and llama"
        )
    _add_special(fast, checkpoint, tokens)
    bos, eos = (_named(checkpoint, tokens, role) for role in ("bos", "eos"))
    # Files that do not say: SentencePiece and Llama 3 begin with BOS, as llama.cpp has it.
    usual = kind == "llama" or checkpoint.field("tokenizer.ggml.pre") in _LLAMA3
    if bos and checkpoint.field("tokenizer.ggml.add_bos_token", usual):
        fast.post_processor = TemplateProcessing(
            single=[bos, "$A"], special_tokens=[(bos, tokens.index(bos))]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=fast,
        chat_template=checkpoint.field("tokenizer.chat_template"),
        bos_token=bos,
        eos_token=eos,
        clean_up_tokenization_spaces=False,
    )


def _named(checkpoint: GGUFCheckpoint, tokens: list[str], role: str) -> str | None:
    index = checkpoint.field(f"tokenizer.ggml.{role}_token_id")
    return tokens[index] if index is not None and index < len(tokens) else None


def _add_special(fast: FastTokenizer, checkpoint: GGUFCheckpoint, tokens: list[str]) -> None:
    types: list[int] = checkpoint.field("tokenizer.ggml.token_type", [])
    for special, wanted in ((True, _CONTROL), (False, _USER_DEFINED)):
        texts = [text for text, kind in zip(tokens, types, strict=False) if kind == wanted]
        added = [AddedToken(text, special=special, normalized=False) for text in texts]
        (fast.add_special_tokens if special else fast.add_tokens)(added)


def _byte_level_bpe(checkpoint: GGUFCheckpoint, tokens: list[str]) -> FastTokenizer:
    merges = [tuple(m.split(" ", 1)) for m in checkpoint.field("tokenizer.ggml.merges", [])]
    vocabulary = {text: index for index, text in enumerate(tokens)}
    name = str(checkpoint.field("tokenizer.ggml.pre", "default"))
    # Llama 3 takes words of the vocabulary whole; Qwen2 composes characters first.
    bpe = models.BPE(vocab=vocabulary, merges=merges, ignore_merges=name in _LLAMA3)
    fast = FastTokenizer(bpe)
    if name == "qwen2":
        fast.normalizer = normalizers.NFC()
    fast.pre_tokenizer = _pre_tokenizer(name)
    fast.decoder = ByteLevelDecoder()
    return fast


def _pre_tokenizer(name: str) -> pre_tokenizers.PreTokenizer:
    """How text is cut before BPE, by GGUF's `tokenizer.ggml.pre`.

    The rules are those of the models' own tokenizer.json files.
    """
    if name in ("smollm", "starcoder"):
        steps = [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    elif name in (*_LLAMA3, "qwen2"):
        pattern = _QWEN2_SPLIT if name == "qwen2" else _LLAMA3_SPLIT
        steps = [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    elif name in ("default", "gpt-2"):
        steps = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    else:
        raise UnpausedError(
            f"pre-tokenizer {name!r} is not supported; supported: "
            "smollm, starcoder, llama-bpe, qwen2, gpt-2"
        )
    return pre_tokenizers.Sequence(steps)


def _sentencepiece(checkpoint: GGUFCheckpoint, tokens: list[str]) -> FastTokenizer:
    """Llama 2's SentencePiece BPE through transformers' converter."""
    from transformers.integrations.gguf import convert_gguf_tokenizer

    fields = {"tokens": tokens, "tokenizer_type": "llama"}
    names = ("scores", "token_type", "bos_token_id", "eos_token_id", "unk_token_id")
    for name in names:
        key = name.replace("unk_", "unknown_")
        value = checkpoint.field(f"tokenizer.ggml.{key}")
        if value is not None:
            fields[name] = value
    converted, _ = convert_gguf_tokenizer("llama", fields)
    return converted
