"""Loading models: what is refused, in one line and before any weight is read, and what is not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from gguf import GGUFWriter
from safetensors.torch import load_file, save_file

from engine import weights
from engine.eager import EagerEngine
from engine.errors import UnpausedError
from engine.models import FAMILIES, family_of
from engine.models.rope import rope_table
from engine.weights import load_model
from tests.engine import gguf_files, tiny
from tests.engine.conftest import TinyFactory
from tests.engine.gguf_files import write_gguf


@pytest.fixture
def folder(tiny_of: TinyFactory, tmp_path: Path) -> Path:
    """A copy of the tiny Llama's folder, to be damaged."""
    return shutil.copytree(tiny_of("llama").folder, tmp_path / "model")


def refusal(path: Path, device: str = "cpu") -> str:
    """Why `path` is refused: one line, told before any weight is read."""
    progress: list[int] = []
    with pytest.raises(UnpausedError) as caught:
        load_model(path, device, progress=lambda done, total: progress.append(done))
    message = str(caught.value)
    assert message and "\n" not in message and not progress
    return message


def edit_config(folder: Path, **changes: Any) -> None:
    """Change config.json; None removes an entry."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in config.items() if v is not None}))


# --- what is no model ---


def test_what_is_not_a_model(tmp_path: Path) -> None:
    (tmp_path / "text.gguf").write_text("Once upon a time there was no magic number.")
    (tmp_path / "text.txt").write_text("Once upon a time.")
    (tmp_path / "empty").mkdir()
    for name in ("text.txt", "empty", "absent", "absent.gguf"):
        message = refusal(tmp_path / name)
        assert name in message and ".gguf file" in message and "config.json" in message
    assert "text.gguf is not a whole GGUF file" in refusal(tmp_path / "text.gguf")


@pytest.mark.parametrize("content", ["", "{", "[]", "\x00\x01", '"text"'])
def test_a_config_that_is_no_json_object(folder: Path, content: str) -> None:
    (folder / "config.json").write_text(content)
    assert "cannot read" in refusal(folder) and "config.json" in refusal(folder)


# --- architectures and configurations ---


@pytest.mark.parametrize(
    "architectures", [["GPT2LMHeadModel"], ["MambaForCausalLM", "x"], [], None]
)
def test_unsupported_architecture(folder: Path, architectures: list[str] | None) -> None:
    edit_config(folder, architectures=architectures)
    message = refusal(folder)
    assert (architectures or ["none named"])[0] in message
    assert all(family.hf_architecture in message for family in FAMILIES)


def test_unsupported_gguf_architecture(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "m.gguf", "falcon")
    gguf_files.write_tokenizer(writer)
    gguf_files.finish(writer)
    message = refusal(tmp_path / "m.gguf")
    assert "'falcon'" in message and "LlamaForCausalLM" in message


def test_families_are_known_by_both_names() -> None:
    for family in FAMILIES:
        assert family_of(family.hf_architecture) is family_of(family.gguf_architecture) is family


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hidden_act": "gelu"}, "gelu"),
        ({"mlp_bias": True}, "MLP"),
        ({"attention_bias": True}, "attention biases"),
        ({"use_sliding_window": True}, "sliding-window"),
        ({"num_key_value_heads": 3}, "4 query heads over 3 key heads"),
        ({"num_attention_heads": 0}, "below 1"),
        ({"num_attention_heads": "many"}, "many"),
        ({"num_hidden_layers": 0}, "below 1"),
        ({"hidden_size": None}, "hidden_size"),
        ({"head_dim": 15}, "odd head size"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "'yarn'"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4}}, "factor"),
        ({"rope_parameters": "none"}, "lacks or garbles"),
        ({"rms_norm_eps": "tiny"}, "tiny"),
    ],
)
def test_configurations_that_are_not_supported(
    folder: Path, changes: dict[str, Any], said: str
) -> None:
    edit_config(folder, **changes)
    assert said in refusal(folder)


# --- quantisation ---


def test_unsupported_gguf_quantisation(tiny_of: TinyFactory, tmp_path: Path) -> None:
    path = write_gguf(tiny_of("llama").reference, tmp_path / "m.gguf", "Q5_0")
    message = refusal(path)
    assert "m.gguf is quantised as Q5_0; supported: " in message
    assert all(kind in message for kind in ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K"))


def test_quantised_safetensors(folder: Path) -> None:
    edit_config(folder, quantization_config={"quant_method": "fp8", "activation_scheme": "dynamic"})
    assert "is quantised by fp8; supported: plain safetensors, or GGUF" in refusal(folder)


# --- files that are incomplete, damaged or disagree ---


def shards(tiny_of: TinyFactory, folder: Path) -> list[Path]:
    tiny.save(tiny_of("llama").reference, folder, max_shard_size="60KB")
    found = sorted(folder.glob("*.safetensors"))
    assert len(found) > 2
    return found


def test_shards(tiny_of: TinyFactory, tmp_path: Path) -> None:
    shards(tiny_of, tmp_path / "sharded")
    model = load_model(tmp_path / "sharded", dtype=torch.float32)
    for name, tensor in tiny_of("llama").model.weights.tensors().items():
        assert torch.equal(model.weights.tensors()[name], tensor)


def test_missing_shard(tiny_of: TinyFactory, tmp_path: Path) -> None:
    first, second, *_ = shards(tiny_of, tmp_path / "sharded")
    first.unlink()
    second.unlink()
    message = refusal(tmp_path / "sharded")
    assert first.name in message and second.name in message


def test_missing_shard_of_a_folder_without_index(tiny_of: TinyFactory, tmp_path: Path) -> None:
    shards(tiny_of, tmp_path / "sharded")[-1].unlink()
    (tmp_path / "sharded" / "model.safetensors.index.json").unlink()
    assert "lacks the tensor" in refusal(tmp_path / "sharded")


@pytest.mark.parametrize("share", [0.0, 0.0001, 0.01, 0.5, 0.999])
def test_shard_cut_short(folder: Path, share: float) -> None:
    path = folder / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    assert "model.safetensors is cut short or damaged" in refusal(folder)


def test_no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert "holds no .safetensors file" in refusal(folder)


def test_missing_tensor(folder: Path) -> None:
    change_tensors(folder, lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))
    assert "lacks the tensor model.layers.1.mlp.up_proj.weight" in refusal(folder)


def test_untied_model_without_a_head(folder: Path) -> None:
    change_tensors(folder, lambda tensors: tensors.pop("lm_head.weight"))
    assert "lacks the tensor lm_head.weight" in refusal(folder)


def test_more_layers_than_there_are(folder: Path) -> None:
    edit_config(folder, num_hidden_layers=10**12)
    assert "lacks the tensor model.layers.2" in refusal(folder)


def test_misshapen_tensor(folder: Path) -> None:
    edit_config(folder, intermediate_size=128)
    message = refusal(folder)
    assert "gate_proj.weight is [96, 64] where the config says [128, 64]" in message


def test_misshapen_gguf_tensor(tiny_of: TinyFactory, tmp_path: Path) -> None:
    def shorten(writer: GGUFWriter) -> None:
        del writer.kv_data[0]["llama.feed_forward_length"]
        writer.add_feed_forward_length(80)

    reference = tiny_of("llama").reference
    path = write_gguf(reference, tmp_path / "m.gguf", metadata=shorten)
    assert "is [96, 64] where the config says [80, 64]" in refusal(path)


def test_missing_gguf_tensor(tiny_of: TinyFactory, tmp_path: Path) -> None:
    name = "model.layers.0.self_attn.k_proj.weight"
    path = write_gguf(tiny_of("llama").reference, tmp_path / "m.gguf", skip=(name,))
    assert f"lacks the tensor {name}" in refusal(path)


def test_gguf_without_metadata(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "m.gguf", "llama")
    gguf_files.finish(writer)
    assert "lacks or garbles" in refusal(tmp_path / "m.gguf")


def test_gguf_cut_short(tiny_of: TinyFactory, tmp_path: Path) -> None:
    """In the header, the metadata, the tokenizer, the tensor table and the tensors."""
    content = write_gguf(tiny_of("llama").reference, tmp_path / "m.gguf", "Q8_0").read_bytes()
    half = tmp_path / "half.gguf"
    # The last tensor may be followed by padding, which nobody would miss.
    ends = {0, 3, 4, 8, 23, 24, len(content) // 2, len(content) - 64}
    for end in sorted(ends | set(range(25, len(content), 997))):
        half.write_bytes(content[:end])
        message = refusal(half)
        assert "half.gguf is not a whole GGUF file" in message and "fetch it again" in message


@pytest.mark.real
@pytest.mark.parametrize("size", [20_000, 1_500_000, 60_000_000])
def test_real_gguf_cut_short(smollm2_path: Path, tmp_path: Path, size: int) -> None:
    with smollm2_path.open("rb") as file:
        (tmp_path / "cut.gguf").write_bytes(file.read(size))
    assert "cut.gguf is not a whole GGUF file" in refusal(tmp_path / "cut.gguf")


def test_no_tokenizer(folder: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    assert "has no usable tokenizer: there is no tokenizer.json in it" in refusal(folder)


def test_gguf_without_tokenizer(tiny_of: TinyFactory, tmp_path: Path) -> None:
    def drop(writer: GGUFWriter) -> None:
        del writer.kv_data[0]["tokenizer.ggml.tokens"]

    path = write_gguf(tiny_of("llama").reference, tmp_path / "m.gguf", metadata=drop)
    assert "m.gguf carries no tokenizer" in refusal(path)


# --- memory ---


def test_model_too_large_for_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=100_000))
    message = refusal(folder)
    assert "model needs 0.0 GB in memory" in message and "choose a smaller model" in message


def test_model_too_large_for_the_gpu(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (100_000, 80 * 10**9))
    assert "on the GPU" in refusal(folder, "cuda")


# --- what loading promises ---


@pytest.mark.parametrize("gguf", [False, True])
def test_progress_reaches_the_total(tiny_of: TinyFactory, tmp_path: Path, gguf: bool) -> None:
    tiny_model = tiny_of("qwen2")
    path = write_gguf(tiny_model.reference, tmp_path / "m.gguf") if gguf else tiny_model.folder
    calls: list[tuple[int, int]] = []
    model = load_model(path, progress=lambda *call: calls.append(call))
    total = sum(tensor.nbytes for tensor in model.weights.tensors().values())
    done = [call[0] for call in calls]
    assert {call[1] for call in calls} == {total} and done[-1] == total
    assert done == sorted(set(done)) and len(done) > 10


def test_names(folder: Path, tiny_of: TinyFactory, tmp_path: Path) -> None:
    dotted = folder.rename(folder.with_name("Tiny-0.6B"))
    path = write_gguf(tiny_of("llama").reference, tmp_path / "Tiny-0.6B.Q4_1.gguf")
    assert load_model(dotted).name == "Tiny-0.6B"
    assert load_model(path).name == "Tiny-0.6B.Q4_1"
    assert load_model(path, name="tiny").name == "tiny"


def test_a_tied_head_shares_the_memory_of_the_embedding(tiny_of: TinyFactory) -> None:
    tied, untied = tiny_of("smollm2").model, tiny_of("llama").model
    assert tied.weights.lm_head.data_ptr() == tied.weights.embed.data_ptr()
    assert "lm_head" not in tied.weights.tensors()
    assert untied.weights.lm_head.data_ptr() != untied.weights.embed.data_ptr()


def test_weight_bytes_per_token(tiny_of: TinyFactory) -> None:
    """All parameters once, but an embedding that is no head is only looked up."""
    for family in ("smollm2", "llama"):
        reference, model = tiny_of(family).reference, tiny_of(family).model
        parameters = sum(p.numel() for p in reference.parameters())
        if not model.config.tied:
            parameters -= reference.get_input_embeddings().weight.numel()
        assert model.weight_bytes_per_token == 4 * parameters


def test_a_head_beside_a_tied_config_is_used_as_transformers_does(
    tiny_of: TinyFactory, tmp_path: Path
) -> None:
    folder = shutil.copytree(tiny_of("smollm2").folder, tmp_path / "model")
    head = tiny_of("smollm2").model.weights.embed.flip(0).contiguous()
    change_tensors(folder, lambda tensors: tensors.update({"lm_head.weight": head}))
    model = load_model(folder, dtype=torch.float32)
    assert not model.config.tied and torch.equal(model.weights.lm_head, head)


def test_older_configs_that_keep_rope_at_the_top(tiny_of: TinyFactory, tmp_path: Path) -> None:
    """transformers 4 wrote rope_theta and rope_scaling where 5 writes rope_parameters."""
    current = tiny_of("llama3")
    folder = shutil.copytree(current.folder, tmp_path / "model")
    rope = dict(current.reference.config.rope_parameters)
    theta = rope.pop("rope_theta")
    edit_config(folder, rope_parameters=None, rope_theta=theta, rope_scaling=rope)
    older = load_model(folder, dtype=torch.float32)
    for ours, expected in zip(
        rope_table(older.config, 200, torch.float32),
        rope_table(current.model.config, 200, torch.float32),
        strict=True,
    ):
        assert torch.equal(ours, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dtypes(tiny_of: TinyFactory, dtype: torch.dtype) -> None:
    model = load_model(tiny_of("qwen3").folder, dtype=dtype)
    assert {tensor.dtype for tensor in model.weights.tensors().values()} == {dtype}
    assert model.new_cache().k.dtype == dtype
    logits = EagerEngine(model).logits(model.new_cache(), [1, 2, 3])
    assert logits.dtype == torch.float32 and bool(logits.isfinite().all())


def change_tensors(
    folder: Path, change: Callable[[dict[str, torch.Tensor]], Mapping[str, Any] | Any]
) -> None:
    path = folder / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


@pytest.mark.parametrize(
    "config",
    ['{"architectures": {"a": 1}}', '{"architectures": ["X"], "quantization_config": "a"}'],
)
def test_a_garbled_config_is_one_line(config: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(config)
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(UnpausedError) as told:
        load_model(tmp_path)
    assert "\n" not in str(told.value) and str(tmp_path) in str(told.value)


def test_a_limit_of_this_process_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    if not hasattr(psutil, "RLIMIT_AS"):
        pytest.skip("this system has no such limit")
    unlimited = weights.free_bytes()
    assert unlimited > 0
    held = psutil.Process().memory_info().vms
    monkeypatch.setattr(psutil.Process, "rlimit", lambda self, what: (held + 500_000_000, -1))
    assert weights.free_bytes() < 200_000_000
    monkeypatch.setattr(psutil.Process, "rlimit", lambda self, what: (held, -1))
    assert weights.free_bytes() == 0
