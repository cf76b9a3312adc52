"""A microphone and a loudspeaker that are not there: null sinks of a PulseAudio server of its own.

What is played into the sink `microphone` is recorded by whoever listens; what an assistant says to
the sink `loudspeaker` can be recorded, and fed back as an echo. Needs pulseaudio, pulseaudio-utils
and, for PortAudio's way to it, ALSA's pulse plugin (libasound2-plugins).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

DEVICE = "pulse"  # as ALSA, and so PortAudio, calls the server
_START_S = 30.0
_COMMANDS = ("pulseaudio", "pactl", "paplay", "parec")
_PLUGINS = ("alsa-lib/libasound_module_pcm_pulse.so",)
_LIBRARIES = ("/usr/lib", "/usr/lib64", "/usr/local/lib")


def missing() -> str:
    """Why there can be no virtual devices here; "" when there can."""
    commands = [name for name in _COMMANDS if shutil.which(name) is None]
    if commands:
        return f"no {', '.join(commands)}: apt install pulseaudio pulseaudio-utils"
    for folder in map(Path, _LIBRARIES):
        if any(next(folder.rglob(plugin), None) for plugin in _PLUGINS if folder.is_dir()):
            return ""
    return "no ALSA plugin for PulseAudio: apt install libasound2-plugins"


class VirtualDevices:
    """Entered, the devices are there for processes with `environment`. Nobody else sees them."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="unpaused-pulse-")
        self._socket = Path(self._folder.name) / "native"
        self._server: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> dict[str, str]:
        """For `subprocess`: the caller's own, and the way to the devices."""
        return {
            **os.environ,
            "PULSE_SERVER": f"unix:{self._socket}",
            "PULSE_SINK": "loudspeaker",
            "PULSE_SOURCE": "microphone.monitor",
            "PULSE_RUNTIME_PATH": self._folder.name,
            "XDG_CONFIG_HOME": self._folder.name,
        }

    def __enter__(self) -> VirtualDevices:
        self.plug()
        return self

    def __exit__(self, *_: object) -> None:
        self.unplug()
        self._folder.cleanup()

    def plug(self) -> None:
        """Start the server. Raises `RuntimeError` when it does not come up."""
        modules = (
            f"module-native-protocol-unix socket={self._socket} auth-anonymous=1",
            "module-null-sink sink_name=microphone rate=48000 channels=1",
            "module-null-sink sink_name=loudspeaker rate=48000 channels=2",
        )
        self._server = subprocess.Popen(
            ["pulseaudio", "-n", "--daemonize=no", "--use-pid-file=no", "--exit-idle-time=-1",
             "--disable-shm=yes", *(f"--load={module}" for module in modules)],
            env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        end = time.monotonic() + _START_S
        while not self._answers():
            if self._server.poll() is not None or time.monotonic() > end:
                raise RuntimeError("pulseaudio did not start")
            time.sleep(0.05)

    def unplug(self) -> None:
        """Stop the server, as a device goes that is pulled out."""
        if self._server is not None:
            self._server.terminate()
            self._server.wait(_START_S)
            self._server = None

    def say(self, recording: Path) -> None:
        """Play a WAV into the microphone; returns when it is over."""
        command = ["paplay", "--device=microphone", str(recording)]
        subprocess.run(command, env=self.environment, check=True, timeout=600)

    def echo(self) -> None:
        """Let the microphone hear the loudspeaker."""
        self._pactl("load-module", "module-loopback", "source=loudspeaker.monitor",
                    "sink=microphone", "latency_msec=20")  # fmt: skip

    @contextlib.contextmanager
    def recorded(self, path: Path) -> Iterator[None]:
        """Record what the loudspeaker plays meanwhile, as WAV."""
        command = ["parec", "--device=loudspeaker.monitor", "--file-format=wav", str(path)]
        with subprocess.Popen(command, env=self.environment) as process:
            try:
                yield
            finally:
                process.terminate()

    def _answers(self) -> bool:
        return self._pactl("info", check=False) == 0

    def _pactl(self, *arguments: str, check: bool = True) -> int:
        done = subprocess.run(
            ["pactl", *arguments],
            env=self.environment,
            check=check,
            timeout=_START_S,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        return done.returncode
