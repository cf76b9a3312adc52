"""A visitor of the page without a browser: opens it, types or speaks, and plays what comes back.

Its player counts samples instead of sounding them, in real time or as fast as they come.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import struct
import time
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np
from websockets.asyncio.client import ClientConnection, connect

FRAME = struct.Struct("<BBHI")  # as ui/protocol.py has it
RATE_HZ, FRAME_MS = 16000, 20
TURN_S = 180.0  # longer than any queue here; then something is wrong
REPORT_S = 0.05


class Fault(Exception):
    """What a visitor was shown, or did not get."""


@dataclass
class Heard:
    """One turn as the visitor met it. Times in seconds of the visitor's own clock."""

    question: str
    turn: int = 0
    finish: str = ""
    transcript: str | None = None
    samples: int = 0  # that came
    announced: int | None = None  # that should have come
    rate_hz: int = 0
    pcm: list[bytes] = field(default_factory=list)
    waits: list[tuple[float, float | None]] = field(default_factory=list)  # (when, told wait)
    served_at: float | None = None  # when the waiting was over
    done_at: float | None = None

    @property
    def served_s(self) -> float | None:
        """How long the turn was served; None of one that did not wait, or did not end."""
        if self.served_at is None or self.done_at is None:
            return None
        return self.done_at - self.served_at

    def wait_errors(self) -> list[tuple[float, float]]:
        """(told, real) of every wait that was shown with a time, the first one first."""
        if self.served_at is None:
            return []
        return [(told, self.served_at - at) for at, told in self.waits if told is not None]


class Visitor:
    """One open page. `async with` it. `fast`: speak and play without keeping to real time."""

    def __init__(self, url: str, fast: bool = False) -> None:
        self.url, self.fast = url.rstrip("/"), fast
        self.faults: list[str] = []
        self.foreign = 0  # frames or events of turns that were never ours
        self._hash = secrets.token_hex(6)
        self._http = httpx.AsyncClient(timeout=httpx.Timeout(30, read=None))
        self._turns: set[int] = set()
        self._heard: Heard | None = None
        self._done, self._quiet = asyncio.Event(), asyncio.Event()
        self._played, self._take = 0, 0

    async def __aenter__(self) -> Visitor:
        config = (await self._http.get(f"{self.url}/config")).raise_for_status().json()
        self._functions = {made["api_name"]: made["id"] for made in config["dependencies"]}
        opened = await self._call("open")
        self.session = str(opened[1])
        if not self.session:
            raise Fault(f"no session: {opened[2]}")
        self._socket: ClientConnection = await connect(
            self.url.replace("http", "ws") + "/ws/voice", max_size=1 << 20
        )
        await self._send(type="hello", session=self.session)
        await self._send(type="sound", on=True)
        works = (self._stay, self._listen, self._play)
        self._tasks = [asyncio.create_task(work()) for work in works]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._socket.close()
        await self._http.aclose()

    async def type_(self, text: str) -> Heard:
        """Type a message and wait for the answer, spoken to its end."""
        self._begin(text)
        following = asyncio.create_task(self._call("_answer", None, text))
        try:
            return await self._end()
        finally:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(following, 10)

    async def speak(self, samples: np.ndarray, question: str = "") -> Heard:
        """Say int16 [n] at 16 kHz with the button held, and wait for the answer."""
        self._begin(question)
        self._take += 1
        await self._send(type="talk", take=self._take, on=True, mode="hold")
        step = RATE_HZ * FRAME_MS // 1000
        began = time.monotonic()
        for number, at in enumerate(range(0, len(samples), step)):
            pcm = samples[at : at + step].astype("<i2").tobytes()
            await self._socket.send(FRAME.pack(1, 0, number & 0xFFFF, self._take) + pcm)
            if self.fast:
                await asyncio.sleep(
                    0.002
                )  # ten times as fast as speech, which the server keeps up with
            else:
                await asyncio.sleep(
                    max(0.0, began + (number + 1) * FRAME_MS / 1e3 - time.monotonic())
                )
        await self._send(type="talk", take=self._take, on=False, mode="hold")
        return await self._end()

    async def ledger(self) -> dict[str, Any]:
        """What the server has recorded of this session."""
        answer = await self._http.get(f"{self.url}/export/{self.session}/session.json")
        return dict(answer.raise_for_status().json())

    # Inside

    def _begin(self, question: str) -> None:
        self._heard, self._played = Heard(question), 0
        self._done.clear()
        self._quiet.clear()

    async def _end(self) -> Heard:
        heard = self._heard
        assert heard is not None
        try:
            await asyncio.wait_for(self._done.wait(), TURN_S)
            if not heard.rate_hz:  # nothing is spoken
                self._quiet.set()
            await asyncio.wait_for(self._quiet.wait(), TURN_S)
        except TimeoutError:
            raise Fault(f"turn {heard.turn} did not end within {TURN_S:.0f} s") from None
        return heard

    async def _send(self, **message: Any) -> None:
        await self._socket.send(json.dumps(message))

    async def _call(self, name: str, *data: Any) -> list[Any]:
        """Call one of the page's functions as its script does: join the queue, follow events."""
        body = {"data": data, "fn_index": self._functions[name], "session_hash": self._hash}
        joined = await self._http.post(f"{self.url}/gradio_api/queue/join", json=body)
        event = joined.raise_for_status().json()["event_id"]
        query = {"session_hash": self._hash}
        async with self._http.stream(
            "GET", f"{self.url}/gradio_api/queue/data", params=query
        ) as events:
            async for line in events.aiter_lines():
                message = json.loads(line[5:]) if line.startswith("data:") else {}
                if message.get("event_id") != event:
                    continue
                if message["msg"] == "process_completed":
                    if not message["success"]:
                        raise Fault(f"{name}: {message['output'].get('error')}")
                    return list(message["output"].get("data", []))
        raise Fault(f"{name}: the events ended")

    async def _stay(self) -> None:
        """As long as this is open the tab is; when it ends the server closes the session."""
        beat = f"{self.url}/gradio_api/heartbeat/{self._hash}"
        async with self._http.stream("GET", beat) as beats:
            async for _ in beats.aiter_lines():
                pass

    async def _listen(self) -> None:
        async for message in self._socket:
            if isinstance(message, bytes):
                self._frame(message)
            else:
                self._event(json.loads(message))

    def _frame(self, data: bytes) -> None:
        kind, _, _, turn = FRAME.unpack_from(data)
        heard = self._heard
        if kind != 2 or turn not in self._turns:
            self.foreign += 1
        elif heard is not None and turn == heard.turn:
            heard.pcm.append(data[FRAME.size :])
            heard.samples += (len(data) - FRAME.size) // 2

    def _event(self, event: dict[str, Any]) -> None:
        heard, turn = self._heard, event.get("turn")
        if event["type"] == "error":
            self.faults.append(event["message"])
            if heard is not None and not heard.turn:  # nothing began
                heard.finish = "refused"
                self._done.set()
        if heard is None:
            return
        if event["type"] == "turn":
            self._turns.add(turn or 0)
            heard.turn = turn or 0
        elif turn != heard.turn:
            return
        elif event["type"] == "state":
            now = time.monotonic()
            if event["state"] == "waiting":
                heard.waits.append((now, event.get("wait_s")))
                heard.served_at = None
            elif heard.waits and heard.served_at is None:
                heard.served_at = now
        elif event["type"] == "heard":
            heard.transcript = event["text"]
        elif event["type"] == "speech":
            heard.rate_hz = event["rate_hz"]
        elif event["type"] == "speech_end":
            heard.announced = event["samples"]
        elif event["type"] == "done":
            heard.finish, heard.done_at = event["finish"], time.monotonic()
            if event["finish"] == "failed":
                self.faults.append(event["message"])
            self._done.set()

    async def _play(self) -> None:
        """Play what came, and report it about every 50 ms, as the page does."""
        last = time.monotonic()
        while True:
            await asyncio.sleep(REPORT_S)
            now, heard = time.monotonic(), self._heard
            elapsed, last = now - last, now
            if heard is None or not heard.rate_hz or self._quiet.is_set():
                continue
            step = heard.samples if self.fast else int(elapsed * heard.rate_hz)
            self._played = min(heard.samples, self._played + step)
            over = heard.announced is not None and self._played >= heard.announced
            report = {"turn": heard.turn, "samples": self._played, "done": over}
            await self._send(type="played", **report, ago_ms=0.0)
            if over:
                self._quiet.set()
