"""From a name to a model: what is refused, and that a header is read once."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine import setup, weights
from engine.errors import UnpausedError
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
