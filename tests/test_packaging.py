"""What the project promises to pip, and what it must not do to the libraries it uses."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from assets.manifest import Manifest, load_manifest

ROOT = Path(__file__).resolve().parents[1]

# A tiny random Llama, generating: enough to make transformers probe for its optional libraries.
_GENERATE = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM
import kernels

torch.manual_seed(0)
sizes = dict(hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
model = LlamaForCausalLM(LlamaConfig(vocab_size=32, num_key_value_heads=1, **sizes))
ids = model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=4, min_new_tokens=4, pad_token_id=0)
print(kernels.__file__, tuple(ids.shape), sep="\\n")
"""
# Hosts that may stand in shipped code: an XML namespace, and papers and licences in comments.
_HOSTS_CITED = {"www.w3.org", "arxiv.org", "doi.org", "www.apache.org"}
_HOSTS_CITED |= {"newsletter.semianalysis.com", "openai.com"}  # sources of published speeds
_HOSTS_CITED |= {"creativecommons.org", "matplotlib.org", "purl.org"}  # drawn figures
_CODE_SUFFIXES = {".py", ".toml", ".js", ".css", ".html", ".svg", ".cu", ".cpp", ".h", ".sh"}


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def requirements() -> dict[str, Requirement]:
    parsed = [Requirement(line) for line in project()["project"]["dependencies"]]
    return {canonicalize_name(requirement.name): requirement for requirement in parsed}


def shipped_files() -> Iterator[Path]:
    """The code and data that the project installs, and what installs it."""
    for name in ("app.py", "pyproject.toml", "Makefile", ".ci/run"):
        if (ROOT / name).exists():
            yield ROOT / name
    for package in project()["tool"]["setuptools"]["packages"]:
        folder = ROOT / package.replace(".", "/")
        yield from (path for path in folder.rglob("*") if path.suffix in _CODE_SUFFIXES)


def test_transformers_generates_beside_a_package_called_kernels() -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", _GENERATE]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[-2:] == [str(ROOT / "kernels" / "__init__.py"), "(1, 7)"]


def test_kernels_runs_nothing_on_import() -> None:
    assert (ROOT / "kernels" / "__init__.py").read_bytes() == b""


@pytest.mark.parametrize(
    ("version", "admitted"),
    [
        ("2.11.0", True),
        ("2.13.0", True),
        ("2.13.0+cpu", True),
        ("2.10.0", False),
        ("2.14.0", False),
    ],
)
def test_torch_range(version: str, admitted: bool) -> None:
    assert requirements()["torch"].specifier.contains(version) is admitted


def test_the_cpu_build_that_make_installs_is_in_range() -> None:
    found = re.search(r"^CPU_TORCH := (\S+)$", (ROOT / "Makefile").read_text("utf-8"), re.M)
    assert found and requirements()["torch"].specifier.contains(found[1])


def test_every_dependency_is_bounded_and_installed_within_its_bounds() -> None:
    for name, requirement in requirements().items():
        operators = {bound.operator for bound in requirement.specifier}
        assert {">=", "<"} <= operators, f"{requirement} needs a lower and an upper bound"
        assert requirement.specifier.contains(importlib.metadata.version(name)), requirement


def test_what_is_imported_is_declared() -> None:
    distributions = importlib.metadata.packages_distributions()
    own = {name.partition(".")[0] for name in project()["tool"]["setuptools"]["packages"]}
    extra = {"cuda", "triton", "pynvml"}  # declared by the gpu extra
    extra |= {"livekit"}  # by the echo extra
    extra |= {"playwright", "tests", "uvicorn", "voicebench"}  # benchmarks in a checkout
    extra |= {"cyllama"}  # a rival in benchmarks, run where it is installed
    declared = set(requirements())
    undeclared = set()
    for path in shipped_files():
        if path.suffix == ".py":
            for module in imported(path) - own - extra - set(sys.stdlib_module_names):
                names = {canonicalize_name(name) for name in distributions.get(module, [module])}
                if not names & declared:
                    undeclared.add(f"{path.relative_to(ROOT)} imports {module}")
    assert not undeclared


def imported(path: Path) -> set[str]:
    """Top-level modules that the file imports, anywhere in it."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            modules |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules.add(node.module.partition(".")[0])
    return modules


def test_every_package_is_shipped() -> None:
    listed = project()["tool"]["setuptools"]["packages"]
    present = {
        ".".join(path.parent.relative_to(ROOT).parts)
        for top in {name.partition(".")[0] for name in listed}
        for path in (ROOT / top).rglob("*.py")
    }
    assert present <= set(listed)


def test_no_shipped_code_names_a_host() -> None:
    """Downloads go where pip, uv and the hub's client are set to go; the page loads no CDN."""
    named = {
        f"{path.relative_to(ROOT)} names {host}"
        for path in shipped_files()
        for host in re.findall(r"(?:https?|wss?)://([\w.-]+\.[a-z]{2,})", path.read_text("utf-8"))
        if host not in _HOSTS_CITED
    }
    assert not named


@pytest.fixture(scope="module")
def manifest() -> Manifest:
    return load_manifest()


def test_the_manifest_pins_every_byte(manifest: Manifest) -> None:
    for asset in manifest.assets:
        pins = [(file.sha256, file.size_bytes) for file in asset.files]
        pins += [(wheel.sha256, wheel.size_bytes) for wheel in asset.wheels]
        for sha256, size_bytes in pins:
            assert re.fullmatch(r"[0-9a-f]{64}", sha256) and size_bytes > 0, asset.name
        assert asset.hub is None or re.fullmatch(r"[0-9a-f]{40}", asset.hub.revision), asset.name
        assert asset.entry == "." or asset.entry in {file.name for file in asset.files}


def test_every_asset_can_do_without_the_hub(manifest: Manifest) -> None:
    for asset in manifest.assets:
        assert asset.wheels, asset.name
        assert all(file.members for file in asset.files), asset.name


def test_each_role_has_one_default_and_each_name_is_one(manifest: Manifest) -> None:
    defaults = sorted(asset.role for asset in manifest.defaults())
    assert defaults == ["llm", "stt", "turn", "voice"]
    names = manifest.names()
    assert len(names) == len(set(names)) and all(name == name.lower() for name in names)


def test_every_licence_is_said(manifest: Manifest) -> None:
    assert all(asset.licence for asset in manifest.assets)
    assert all(model.licence for model in manifest.hub_models)


def test_the_licence_is_apache_in_full() -> None:
    text = (ROOT / "LICENSE").read_text("utf-8")
    assert "Apache License" in text and "END OF TERMS AND CONDITIONS" in text
