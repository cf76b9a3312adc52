"""What this machine can do, what is missing, and what to do about it.

Nothing here changes the machine, downloads anything or waits longer than a few seconds.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from assets import hub
from assets.resolver import Resolver, default_resolver
from engine.cpu_cores import cpuinfo
from engine.errors import UnpausedError
from engine.programs import nvidia_driver, nvidia_smi

_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Those that matter to a decode loop.
_CPU_FEATURES = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "bf16", "sve")
_MIN_MEMORY_BYTES = 2_000_000_000  # the default models, torch and the page, with some room
_MARKS = {True: "ok", False: "NO", None: "--"}


@dataclass(frozen=True)
class Check:
    """One finding. `ok`: True good, False in the way of the defaults, None for information.

    `remedy` says what to do; empty when there is nothing to do.
    """

    name: str
    ok: bool | None
    detail: str
    remedy: str = ""


def report() -> list[Check]:
    """Every check, in the order a person would ask."""
    checks = [_python(), _torch(), _gpu(), _triton(), _cpu(), _memory()]
    checks += _weights()
    checks += [_hub(), _portaudio()]
    checks += _engines()
    if importlib.util.find_spec("playwright"):  # only the tests drive a browser
        checks.append(_browser())
    return checks


def render(checks: list[Check]) -> str:
    """The checks as lines for a terminal."""
    width = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        lines.append(f"{_MARKS[check.ok]}  {check.name:<{width}}  {check.detail}")
        if check.remedy:
            lines.append(f"    {'':<{width}}  -> {check.remedy}")
    return "\n".join(lines)


def run(as_json: bool = False) -> int:
    """Print the report, as one JSON object if asked; 1 when something is in the way, else 0."""
    checks = report()
    good = all(check.ok is not False for check in checks)
    if as_json:
        print(json.dumps({"ok": good, "checks": [asdict(check) for check in checks]}))
    else:
        print(render(checks))
    return 0 if good else 1


def find_browser() -> str | None:
    """A browser of the Chromium family: `UNPAUSED_CHROMIUM`, or one on the path."""
    candidates = (os.environ.get("UNPAUSED_CHROMIUM"), *_BROWSERS)
    return next((path for c in candidates if c and (path := shutil.which(c))), None)


def _python() -> Check:
    version = platform.python_version()
    detail = f"{version} on {platform.system()} {platform.machine()} ({sys.executable})"
    return Check("python", True, detail)


def _torch() -> Check:
    try:
        import torch
    except (ImportError, OSError) as error:
        return Check("torch", False, f"does not import ({error})", "run: pip install -e .")
    built_for = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU"
    return Check("torch", True, f"{torch.__version__}, built for {built_for}")


def _gpu() -> Check:
    listed = nvidia_smi("--list-gpus")
    try:
        import torch

        usable = torch.cuda.is_available()
    except (ImportError, OSError):
        usable = False
    if usable:
        names = [_gpu_line(i) for i in range(torch.cuda.device_count())]
        return Check("gpu", True, f"{'; '.join(names)}; driver {nvidia_driver() or 'unknown'}")
    if listed:
        remedy = "install a CUDA build of torch in a new environment, or update the driver"
        return Check("gpu", None, f"{listed}, which this torch cannot use", remedy)
    return Check("gpu", None, "no NVIDIA GPU: the CPU engines work, the GPU engines do not")


def _gpu_line(index: int) -> str:
    import torch

    gpu = torch.cuda.get_device_properties(index)
    free_bytes, total_bytes = torch.cuda.mem_get_info(index)
    memory = f"{free_bytes / 1e9:.0f} of {total_bytes / 1e9:.0f} GB free"
    return f"{gpu.name} (sm_{gpu.major}{gpu.minor}, {gpu.multi_processor_count} SMs, {memory})"


def _triton() -> Check:
    try:
        return Check("triton", True, importlib.metadata.version("triton"))
    except importlib.metadata.PackageNotFoundError:
        remedy = "with an NVIDIA GPU, run: pip install -e '.[gpu]'"
        return Check("triton", None, "not installed; only GPU engines need it", remedy)


def _cpu() -> Check:
    import psutil

    cores = psutil.cpu_count(logical=False) or "?"
    present = set(cpuinfo().split())
    features = ", ".join(name for name in _CPU_FEATURES if name in present) or "unknown"
    return Check("cpu", None, f"{cores} cores, {os.cpu_count()} threads; features: {features}")


def _memory() -> Check:
    import psutil

    memory = psutil.virtual_memory()
    detail = f"{memory.available / 1e9:.1f} of {memory.total / 1e9:.1f} GB free"
    if memory.available < _MIN_MEMORY_BYTES:
        return Check("memory", False, detail, "close other programs: the defaults take about 2 GB")
    return Check("memory", True, detail)


def _weights() -> Iterator[Check]:
    try:
        resolver = default_resolver()
    except UnpausedError as error:
        yield Check("weights", False, str(error))
        return
    yield _disk(resolver)
    for asset in resolver.manifest.defaults():
        name = f"weights {asset.role}"
        if resolver.is_cached(asset):
            yield Check(name, True, f"{asset.name}, cached")
        else:
            size = f"{asset.size_bytes / 1e6:.0f} MB"
            remedy = f"fetched on first use, or now: python -m assets fetch {asset.name}"
            yield Check(name, None, f"{asset.name}, not cached ({size})", remedy)


def _disk(resolver: Resolver) -> Check:
    root = resolver.cache.root
    existing = next(folder for folder in (root, *root.parents) if folder.exists())
    if not existing.is_dir():
        remedy = "remove that file or set UNPAUSED_CACHE to a folder"
        return Check("cache", False, f"{root}: {existing} is a file, not a folder", remedy)
    free_bytes = shutil.disk_usage(existing).free
    detail = f"{root}, {free_bytes / 1e9:.1f} GB free"
    if not os.access(existing, os.W_OK):
        remedy = "make it writable or set UNPAUSED_CACHE to a folder that is"
        return Check("cache", None, f"{root}, not writable", remedy)
    absent = [a for a in resolver.manifest.defaults() if not resolver.is_cached(a)]
    if free_bytes < 2 * sum(asset.size_bytes for asset in absent):
        return Check("cache", False, detail, "make room or set UNPAUSED_CACHE to another disk")
    return Check("cache", True, detail)


def _hub() -> Check:
    if hub.offline():
        remedy = "unset HF_HUB_OFFLINE to fetch other models; the defaults do not need the hub"
        return Check("model hub", None, "not asked: HF_HUB_OFFLINE is set", remedy)
    if hub.reachable():
        return Check("model hub", True, "reachable")
    return Check("model hub", None, "not reachable: the default weights do not need it")


def _portaudio() -> Check:
    """The page's microphone is the browser's; PortAudio serves local audio devices only."""
    try:
        import sounddevice
    except ImportError as error:
        return Check("portaudio", None, f"no sounddevice ({error})", "run: pip install -e .")
    except OSError:
        remedy = "install PortAudio: apt install libportaudio2, dnf install portaudio, or brew"
        return Check("portaudio", None, "the PortAudio library is missing", remedy)
    try:
        devices = sounddevice.query_devices()
    except sounddevice.PortAudioError as error:
        return Check("portaudio", None, f"its devices cannot be listed ({error})")
    inputs = sum(device["max_input_channels"] > 0 for device in devices)
    outputs = sum(device["max_output_channels"] > 0 for device in devices)
    detail = f"microphones: {inputs}, loudspeakers: {outputs}"
    if inputs and outputs:
        return Check("portaudio", True, detail)
    return Check("portaudio", None, f"{detail}; the page uses those of the browser instead")


def _engines() -> Iterator[Check]:
    try:
        from engine.registry import ENGINES
    except (ImportError, OSError) as error:  # without torch, say; the check above says it too
        yield Check("engines", False, f"cannot be loaded ({error})", "run: pip install -e .")
        return
    for entry in ENGINES.values():
        reason = entry.unavailable()
        if reason is None:
            yield Check(f"engine {entry.name}", True, entry.label)
        else:
            yield Check(f"engine {entry.name}", None, f"{entry.label}: {reason}")


def _browser() -> Check:
    found = find_browser()
    if found:
        return Check("browser", True, f"{found} (tests only)")
    remedy = "for the browser tests: apt install chromium, or set UNPAUSED_CHROMIUM"
    return Check("browser", None, "no Chromium", remedy)
