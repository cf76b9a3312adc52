"""`app.py listen`: talk to this machine through its own microphone and loudspeaker."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from engine.errors import UnpausedError

if TYPE_CHECKING:
    from audio.soundcard import Soundcard
    from ui.listen_talk import Talk

KEYS = "space talk · e engine · r again on the other · t thinking tokens · q quit"
FILE_KEYS = "e engine · r again on the other · t thinking tokens · q quit"
TYPED_KEYS = "/e engine · /r again on the other · /t thinking tokens · /q quit"
_TICK_S = 0.02
_TEXT = "to type instead: app.py listen --text"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    devices = parser.add_argument_group("devices")
    devices.add_argument("--microphone", metavar="NAME", help="a number or a part of its name")
    devices.add_argument("--loudspeaker", metavar="NAME", help="the same")
    devices.add_argument("--list-devices", action="store_true", help="show them and leave")
    devices.add_argument(
        "--headset", action="store_true", help="there is no echo: hear while speaking"
    )
    files = parser.add_argument_group("instead of devices")
    files.add_argument("--in", dest="heard", type=Path, metavar="WAV", help="a recording to hear")
    files.add_argument("--out", type=Path, metavar="WAV", help="what is said, in time with it")
    files.add_argument("--fast", action="store_true", help="do not wait where nothing is computed")
    files.add_argument("--text", action="store_true", help="type; no sound at all")


def run(options: argparse.Namespace) -> int:
    """Listen until the person has had enough, the recording is over or the input ends."""
    if options.list_devices:
        from audio.devices import list_devices, table

        print("\n".join(table(list_devices())))
        return 0
    from ui.loading import check_engine

    options.engine = check_engine(options)  # misspelt: said before anything is loaded
    _check(options)
    if options.text:
        return _typed(options)
    if options.heard:
        return _files(options)
    try:
        return _live(options)
    except DeviceFault as fault:
        if not _interactive():
            raise UnpausedError(f"{fault}; {_TEXT}") from fault
        print(f"unpaused: {fault}\nYou can type instead.", file=sys.stderr)
        return _typed(options)


class DeviceFault(UnpausedError):
    """Sound cannot be had; everything else works."""


def _check(options: argparse.Namespace) -> None:
    if options.heard is None and (options.out or options.fast):
        raise UnpausedError("--out and --fast go with --in: name the recording to hear")
    if options.text and options.heard:
        raise UnpausedError("--text and --in exclude each other: type, or name a recording")
    instead = "--text" if options.text else "--in" if options.heard else ""
    for name in ("microphone", "loudspeaker", "headset"):
        if instead and getattr(options, name):
            raise UnpausedError(
                f"--{name} is about a device, and {instead} uses none: leave it out"
            )


def _live(options: argparse.Namespace) -> int:
    from audio.echo import choose_echo
    from audio.portaudio import native_silence
    from audio.soundcard import Choice, Soundcard
    from ui.listen_assistant import load_assistant
    from ui.listen_talk import Talk

    choice, notices = Choice(options.microphone, options.loudspeaker), list[str]()
    with native_silence():
        with _device_faults():  # before anything is loaded; streams take a moment to begin, too
            card = Soundcard(choice, choose_echo(options.headset), notices.append)
        try:
            with Talk(options, load_assistant(options), KEYS) as talk:
                card.tell = talk.screen.notice
                for notice in notices:
                    card.tell(notice)
                _listen(talk, card)
        finally:
            card.close()
    return 0


def _listen(talk: Talk, card: Soundcard) -> None:
    from audio.player import Player
    from ui.listen_keys import Keys
    from ui.listen_room import LiveRoom
    from ui.listen_talk import Controls

    player = Player(card.outlet, talk.played)
    talk.listeners.append(player.take)
    room = LiveRoom(card, talk.dialogue, player)
    controls = Controls(talk, room.call)
    talk.dialogue.listen(True)
    card.begin()
    room.start()
    while room.running and not card.blocks and not talk.over.wait(_TICK_S):
        pass  # until the first sound is there
    talk.screen.set(status="listening")
    talk.screen.notice(f"listening: {card.words}")
    with Keys(controls.press) as keys:
        if not keys.available:
            talk.screen.notice("no keys here, standard input is no terminal; Ctrl+C ends it")
        while room.running and not talk.over.wait(_TICK_S):
            controls.tick()
            talk.draw(card.level, f"{card.words}, {card.missed_ms:,.0f} ms missed")
    room.stop()
    talk.finish(blocks=card.blocks, missed_ms=round(card.missed_ms, 1),
                underflows=card.underflows, gaps=player.gaps)  # fmt: skip
    if room.fault is not None:
        raise DeviceFault(str(room.fault))


def _files(options: argparse.Namespace) -> int:
    from audio.frames import read_audio, write_wav
    from audio.player import Player
    from ui.listen_assistant import load_assistant
    from ui.listen_keys import Keys
    from ui.listen_room import FILE_RATE_HZ, FileRoom
    from ui.listen_talk import Controls, Talk
    from ui.loading import check_reply_path

    samples = read_audio(options.heard)
    check_reply_path(options.out, options.heard)
    room = FileRoom(samples, options.fast)
    with Talk(options, load_assistant(options), FILE_KEYS, room) as talk:
        player = Player(room.outlet, talk.played, room.clock)
        talk.listeners.append(player.take)
        talk.dialogue.listen(True)
        talk.screen.set(status="listening")
        controls = Controls(talk)
        with Keys(controls.press), ThreadPoolExecutor(1) as pool:
            work = pool.submit(room.run, talk.dialogue, player, talk.over)
            while not work.done():
                wait([work], _TICK_S)
                talk.draw(room.level, str(options.heard))
        work.result()
        if options.out:
            write_wav(options.out.resolve(), room.speech(), FILE_RATE_HZ)
        talk.finish(gaps=room.outlet.gaps)
    return 0


def _typed(options: argparse.Namespace) -> int:
    from ui.listen_assistant import load_assistant
    from ui.listen_talk import Controls, Talk

    if sys.stdin is None or sys.stdin.closed:
        raise UnpausedError("--text reads standard input, which is closed")
    with Talk(options, load_assistant(options, speaking=False), "", typed=True) as talk:
        talk.dialogue.speak = False
        controls = Controls(talk)
        if _interactive():
            talk.screen.notice(f"type and press Enter; {TYPED_KEYS}")
        for line in _typed_lines(talk):
            if line.startswith("/"):
                controls.press(line[1:2])
            else:
                talk.dialogue.say(line)
            talk.wait_idle()
            if talk.over.is_set():
                break
        talk.finish()
    return 0


def _typed_lines(talk: Talk) -> Iterator[str]:
    while not talk.over.is_set():
        try:
            line = input("> " if _interactive() else "").strip()
        except UnicodeDecodeError:
            talk.screen.notice("that line is not valid Unicode: type it again")
            continue
        except (EOFError, OSError, ValueError):  # the end, or closed meanwhile
            return
        if line:
            yield line


@contextmanager
def _device_faults() -> Iterator[None]:
    try:
        yield
    except UnpausedError as error:
        raise DeviceFault(str(error)) from error


def _interactive() -> bool:
    return bool(sys.stdin and sys.stdin.isatty() and sys.stdout and sys.stdout.isatty())
