"""One dialogue at a terminal: its events shown, its keys obeyed, its turns kept."""

from __future__ import annotations

import argparse
import json
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from audio.dialogue import Dialogue
from audio.dialogue_events import Event, RoundBegan, RoundOver
from audio.record import TurnRecord
from engine.errors import UnpausedError
from engine.registry import ENGINES
from ui.listen_assistant import Assistant, detector
from ui.listen_keys import PushToTalk
from ui.listen_room import FileRoom
from ui.listen_screen import News, Screen
from ui.listen_view import FRAMES_PER_S, Lines, choose_view

_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP")
            if hasattr(signal, name)]  # fmt: skip


_END_S = 5.0  # for a reply that was stopped; it takes a token


class Talk:
    """A dialogue with its listeners, shown while entered. `over` is set when it is to end: by a
    key, or by a signal, of which a second one takes its usual effect."""

    def __init__(
        self,
        options: argparse.Namespace,
        assistant: Assistant,
        keys: str,
        room: FileRoom | None = None,
        typed: bool = False,
    ) -> None:
        self.assistant, self.over = assistant, threading.Event()
        self.listeners: list[Callable[[Event], None]] = []
        self.records: list[TurnRecord] = []
        self._options = options
        self._next_frame_s = 0.0
        self._open: set[int] = set()  # rounds that began and are not over
        self._typed = typed
        self._view = Lines(options.json) if typed else choose_view(options.json, keys)
        self.screen = Screen(self._tell)
        self._reader_gone = False
        self.screen.set(engine=assistant.engine_name, model=assistant.model_name)
        assistant.answers = lambda name: self.screen.set(answering=name)
        self.dialogue = self._make_dialogue(room)
        self._before: dict[int, Any] = {}

    def _make_dialogue(self, room: FileRoom | None) -> Dialogue:
        assistant = self.assistant
        return Dialogue(
            assistant.open_turn,
            assistant.transcribe,
            self._take,
            detector(),
            judge=assistant.judge,
            runner=room.runner if room else None,
            clock=room.clock if room else time.perf_counter,
        )

    def _tell(self, news: News) -> None:
        try:
            self._view.tell(news)
        except BrokenPipeError:  # the reader of our output has gone, as in `| head`
            self._reader_gone = True
            self.over.set()

    def _take(self, event: Event) -> None:
        for listener in self.listeners:
            listener(event)
        self.screen.take(event)
        if isinstance(event, RoundBegan):
            self._open.add(event.generation)
        if isinstance(event, RoundOver):
            event.record.answer.clear()  # nobody asks for the sound, and a talk may be long
            if comparison := self.assistant.comparison():
                self.screen.notice(comparison)
            self.records.append(event.record)
            self._open.discard(event.generation)

    def __enter__(self) -> Talk:
        # While a line is typed an interrupt has to end the reading of it, as usual.
        if not self._typed and threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._end) for number in _SIGNALS}
        self._view.__enter__()
        return self

    def __exit__(self, *fault: object) -> None:
        self.dialogue.close()
        self._view.__exit__(*fault)
        self._restore()

    def _end(self, number: int, frame: FrameType | None) -> None:
        self._restore()
        self.over.set()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def played(self, generation: int, samples: int, ago_ms: float) -> None:
        """A player's report."""
        self.dialogue.played(generation, samples, None, ago_ms)

    def draw(self, level: float, status: str) -> None:
        """Show the instruments as they are now, if it is time to."""
        now = time.monotonic()
        if now < self._next_frame_s:
            return
        self._next_frame_s = now + 1 / FRAMES_PER_S
        self._view.draw(self.screen.snapshot(), level, status)

    def wait_idle(self) -> None:
        """Until the reply under way is over, or the talk is."""
        while (self.dialogue.active or self._open) and not self.over.wait(0.02):
            pass

    def finish(self, **counts: float) -> None:
        """End what is under way. With `--json`, the last line: every turn, and `counts`."""
        self.dialogue.close()
        end = time.monotonic() + _END_S
        while self._open and time.monotonic() < end:
            time.sleep(0.01)
        if self._reader_gone:
            raise BrokenPipeError
        if self._options.json:
            turns = [record.as_dict() for record in self.records]
            print(json.dumps({"turns": turns, **counts}, ensure_ascii=False), flush=True)


class Controls:
    """What the keys do. `call` runs what belongs to the microphone's thread; without one there is
    no microphone, and the space bar does nothing."""

    def __init__(
        self, talk: Talk, call: Callable[[Callable[[], None]], None] | None = None
    ) -> None:
        self._talk, self._call = talk, call
        self._space = PushToTalk()
        self._actions = {"e": self._engine, "r": self._again, "t": self._think, "q": self._quit}

    def press(self, key: str) -> None:
        """A key was pressed; those without a meaning are ignored."""
        if key == " " and self._call is not None:
            self._talk_key(self._space.press(time.monotonic()))
            return
        try:
            self._actions.get(key.lower(), lambda: None)()
        except UnpausedError as error:
            self._talk.screen.notice(str(error))

    def tick(self) -> None:
        """To be called often: a key that is let go of says nothing."""
        self._talk_key(self._space.tick(time.monotonic()))

    def _talk_key(self, change: bool | None) -> None:
        if change is None or self._call is None:
            return
        dialogue, screen = self._talk.dialogue, self._talk.screen
        self._call(dialogue.press if change else dialogue.release)
        screen.set(status="talk now" if change else "listening")

    def _engine(self) -> None:
        name = self._talk.assistant.switch()
        self._talk.screen.set(engine=name)
        self._talk.screen.notice(f"from the next turn on: {name}, {ENGINES[name].label.lower()}")
        threading.Thread(target=self._load, args=(name,), daemon=True).start()

    def _load(self, name: str) -> None:
        try:
            self._talk.assistant.load(name)
        except UnpausedError as error:
            self._talk.screen.notice(str(error))

    def _again(self) -> None:
        assistant = self._talk.assistant
        name = assistant.rival()
        self._talk.screen.notice(f"again, on {name}")
        self._talk.dialogue.say(assistant.question(), options=name)

    def _think(self) -> None:
        count = self._talk.assistant.think()
        self._talk.screen.set(hidden_tokens=count)
        self._talk.screen.notice(f"hidden tokens before each reply: {count}")

    def _quit(self) -> None:
        self._talk.over.set()
