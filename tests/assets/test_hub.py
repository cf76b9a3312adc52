"""Weights from a model hub: the real client against a small hub on this machine.

The client reads its settings once per process, so each case runs in a process of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.assets.fake_hub import COMMIT, FakeHub, running
from tests.assets.fakes import FakeWorld, file_table

WEIGHTS = b"weights" * 5000
REPO = "Some/Weights"
HUB_TABLE = f'[asset.hub]\nrepo = "{REPO}"\nrevision = "{COMMIT}"\n'
MODEL = {
    "config.json": b"{}",
    "model.safetensors": WEIGHTS,
    "tokenizer.json": b"{}",
    "README.md": b"not needed",
    "onnx/model.safetensors": b"not needed",
}


def fetch(world: FakeWorld, name: str, hub_url: str, **env: str) -> tuple[int, str, str]:
    """Exit code, output and errors of a process that resolves `name` with the hub allowed."""
    settings = {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": hub_url, "HF_HUB_DISABLE_XET": "1", **env}
    process = world.fetch_in_process(name, env=settings)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def pinned(world: FakeWorld, with_wheel: bool = False) -> None:
    """One asset, `tiny`, that the hub holds under another path, and maybe a wheel too."""
    wheel = world.add_wheel("tiny-weights", {"m.bin": WEIGHTS}) if with_wheel else ""
    file = file_table("m.bin", WEIGHTS, "tiny_weights/m.bin", hub_path="deep/down/m.bin")
    world.add_asset("tiny", HUB_TABLE, wheel, file, entry="m.bin")


def hub_model(world: FakeWorld) -> None:
    world.manifest.write_text(f'[[hub_model]]\nname = "q"\nrepo = "{REPO}"\nlicence = "MIT"\n')


def serving(files: Mapping[str, bytes]) -> FakeHub:
    return FakeHub({REPO: files})


def test_pinned_files_come_from_the_hub(world: FakeWorld) -> None:
    pinned(world, with_wheel=True)
    with running(serving({"deep/down/m.bin": WEIGHTS})) as hub:
        code, out, err = fetch(world, "tiny", hub.url)
    assert code == 0, err
    assert Path(out.splitlines()[0]).read_bytes() == WEIGHTS
    assert any("deep/down/m.bin" in path for path in hub.sent)
    kept = {path.name for path in (world.cache / "tiny").iterdir()}
    assert kept == {"m.bin", ".verified.json"}


def test_wrong_bytes_on_the_hub_are_refused_and_the_wheel_is_used(world: FakeWorld) -> None:
    pinned(world, with_wheel=True)
    with running(serving({"deep/down/m.bin": WEIGHTS[::-1]})) as hub:
        code, out, err = fetch(world, "tiny", hub.url)
    assert code == 0, err
    assert Path(out.splitlines()[0]).read_bytes() == WEIGHTS


def test_an_unreachable_hub_leaves_the_wheel(world: FakeWorld) -> None:
    pinned(world, with_wheel=True)
    code, _, err = fetch(world, "tiny", "http://127.0.0.1:9")
    assert code == 0, err
    assert "Retrying" not in err  # the client's slow retries were never started


def test_every_source_is_named_when_none_delivers(world: FakeWorld) -> None:
    pinned(world)
    with running(serving({})) as hub:
        code, _, err = fetch(world, "tiny", hub.url)
    assert code == 1
    assert f"no public repository {REPO}" in err and "no wheel carries it" in err
    assert len(err.strip().splitlines()) == 1


def test_hub_offline_is_honoured(world: FakeWorld) -> None:
    pinned(world)
    with running(serving({"deep/down/m.bin": WEIGHTS})) as hub:
        code, _, err = fetch(world, "tiny", hub.url, HF_HUB_OFFLINE="1")
    assert code == 1 and "HF_HUB_OFFLINE is set" in err
    assert hub.sent == []


def test_a_hub_model_is_a_snapshot_and_then_needs_no_hub(world: FakeWorld) -> None:
    hub_model(world)
    with running(serving(MODEL)) as hub:
        code, out, err = fetch(world, "q", hub.url)
    assert code == 0, err
    folder = Path(out.splitlines()[0])
    assert out.splitlines()[1] == "fetched"
    kept = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert kept == {"config.json", "model.safetensors", "tokenizer.json"}
    for env in ({"HF_HUB_OFFLINE": "0"}, {"HF_HUB_OFFLINE": "1"}):
        code, out, err = fetch(world, REPO, hub.url, **env)
        assert (code, out.splitlines()) == (0, [str(folder), "cached"]), err


def test_a_snapshot_with_a_missing_file_is_completed(world: FakeWorld) -> None:
    hub_model(world)
    with running(serving(MODEL)) as hub:
        _, out, _ = fetch(world, "q", hub.url)
        weights = Path(out.splitlines()[0]) / "model.safetensors"
        weights.unlink()
        code, _, err = fetch(world, "q", hub.url)
    assert code == 0, err
    assert weights.read_bytes() == WEIGHTS


def test_a_repository_that_does_not_exist(world: FakeWorld) -> None:
    hub_model(world)
    with running(serving(MODEL)) as hub:
        code, _, err = fetch(world, "No/Such", hub.url)
    assert code == 1
    assert (
        err.strip()
        == "error: No/Such cannot be used: the model hub has no public repository No/Such"
    )


def test_an_unreachable_hub_and_no_snapshot(world: FakeWorld) -> None:
    hub_model(world)
    code, _, err = fetch(world, "q", "http://127.0.0.1:9")
    assert code == 1
    assert "not in the cache and the model hub cannot be reached" in err
