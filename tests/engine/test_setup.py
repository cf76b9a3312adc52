"""From a name to a model: what is refused, and that a header is read once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine import setup, weights
from engine.cpu import PersistentCpuEngine
from engine.eager import EagerEngine
from engine.errors import UnpausedError
from engine.persistent_tape import PersistentTapeEngine
from engine.persistent_triton import PersistentTritonEngine
from engine.registry import concrete_name
from tests.engine import tiny


def test_only_language_models_are_offered_and_taken() -> None:
    for spec in ("nobody", "whisper-base", "voice"):
        with pytest.raises(UnpausedError, match="language model") as fault:
            setup.locate_model(spec)
        assert "smollm2-135m-instruct" in str(fault.value)
        assert "use one of" in str(fault.value) and "joe-us-medium," not in str(fault.value)
        assert "whisper-base," not in str(fault.value)


def test_a_model_is_inspected_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [tiny.save(tiny.make_reference("llama"), tmp_path / name) for name in ("a", "b")]
    opened: list[Path] = []

    def open_checkpoint(path: Path) -> weights.Checkpoint:
        opened.append(path)
        return original(path)

    original = weights.open_checkpoint
    monkeypatch.setattr(weights, "open_checkpoint", open_checkpoint)
    located = [setup.locate_model(str(folder)) for folder in folders]
    assert opened == folders
    assert setup.open_model(*located[1]).name == "b"
    assert opened == folders, "what was located last is not read again"
    assert setup.open_model(*located[0]).name == "a"
    assert setup.open_model(*located[1]).name == "b"
    assert opened == [*folders, *folders]


def folder_of(path: Path, **options: Any) -> str:
    return str(tiny.save(tiny.make_reference("llama", **options), path))


def test_off_and_ngram_need_no_model(tmp_path: Path) -> None:
    located = setup.locate_model(folder_of(tmp_path / "a"))
    assert setup.locate_drafting("off", located) is None
    drafting = setup.locate_drafting("ngram", located)
    model = setup.open_model(*located)
    found = setup.open_speculation(drafting, model)
    assert found is not None and (found.method, found.draft_model) == ("ngram", None)
    assert setup.open_speculation(None, model) is None


def test_a_draft_model_is_loaded_beside_its_target(tmp_path: Path) -> None:
    target, small = (
        folder_of(tmp_path / "target"),
        folder_of(tmp_path / "small", num_hidden_layers=1),
    )
    located = setup.locate_model(target)
    drafting = setup.locate_drafting(f"draft:{small}", located)
    model = setup.open_model(*located)
    found = setup.open_speculation(drafting, model)
    assert found is not None and found.draft_model is not None
    assert found.draft_model.name == "small" and found.draft_model.config.layers == 1
    assert found.draft_model.device == model.device and found.draft_model.dtype == model.dtype
    engine = setup.open_engine("eager", model, speculation=found)
    engine.close()


def test_a_model_cannot_draft_for_itself(tmp_path: Path) -> None:
    located = setup.locate_model(folder_of(tmp_path / "a"))
    with pytest.raises(UnpausedError, match="a cannot draft for itself: its drafts would cost"):
        setup.locate_drafting(f"draft:{tmp_path / 'a'}", located)


def test_another_vocabulary_is_refused_before_any_weight_is_read(
    tmp_path: Path, smollm2_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    located = setup.locate_model(folder_of(tmp_path / "a"))
    monkeypatch.setattr(setup, "load_model", None)
    with pytest.raises(UnpausedError, match=r"for a: its vocabulary has 49,152 tokens, not 384"):
        setup.locate_drafting(f"draft:{smollm2_path}", located)


def test_two_models_that_do_not_fit_together_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    located = setup.locate_model(folder_of(tmp_path / "a"))
    drafting = setup.locate_drafting(f"draft:{folder_of(tmp_path / 'b')}", located)
    model = setup.open_model(*located)
    monkeypatch.setattr(weights, "free_bytes", lambda: 1000)
    with pytest.raises(UnpausedError, match="b needs"):
        setup.open_speculation(drafting, model)


def test_an_engine_that_cannot_draft_refuses_before_anything_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(EagerEngine, "speculates", ("ngram",))
    assert concrete_name("eager", "ngram") == "eager"
    with pytest.raises(UnpausedError, match="engine eager has only --speculate ngram so far"):
        concrete_name("eager", "draft")
    monkeypatch.setattr(EagerEngine, "speculates", ())
    with pytest.raises(UnpausedError, match="engine eager has no speculation so far"):
        concrete_name("eager", "ngram")


def test_persistent_stands_for_one_that_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    able = {PersistentTapeEngine: (), PersistentTritonEngine: ("ngram",), PersistentCpuEngine: ()}
    for engine, methods in able.items():
        monkeypatch.setattr(engine, "unavailable", staticmethod(lambda: None))
        monkeypatch.setattr(engine, "speculates", methods, raising=False)
    assert concrete_name("persistent") == "persistent-tape"
    assert concrete_name("persistent", "ngram") == "persistent-triton"
    with pytest.raises(UnpausedError, match="engine persistent has only --speculate ngram so far"):
        concrete_name("persistent", "draft")
