"""The one door of the server: what may be asked for at all, by whom, how much and how often.

Everything here is decided before a body is read or a message is parsed; the routes that there are
stand in `ui/rules.py`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ui.access import COOKIE, Access, client_of, forwarded, has_cookie, presents_credentials
from ui.limits import Allowance, Allowances
from ui.rules import UNGUARDED, Refusal, find_rule, is_api
from ui.telemetry import Telemetry

REQUESTS_PER_S, REQUESTS_AT_ONCE = 40, 400  # of one address; a page takes seventy
GUESSES_PER_S, GUESSES_AT_ONCE = 0.1, 10  # of a password
MESSAGES_PER_S, MESSAGES_AT_ONCE = 250, 2000  # of a socket; a voice takes seventy
MAX_SOCKETS = 128
MAX_MESSAGE_BYTES = 64 * 1024  # the socket's own grammar is stricter
BODY_S = 60.0  # until a body has come


class Guard:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, access: Access, telemetry: Telemetry) -> None:
        self._app, self._access, self._telemetry = app, access, telemetry
        self._requests = Allowances(REQUESTS_PER_S, REQUESTS_AT_ONCE)
        self._guesses = Allowances(GUESSES_PER_S, GUESSES_AT_ONCE)
        self._sockets = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        try:
            rule = find_rule(scope["method"], scope["path"])
            self._check(scope, headers, rule.cost)
            # Of reading, too: Gradio lets every page on this machine read what another one serves.
            if not self._access.same_origin(headers):
                raise Refusal(403, "origin", "This request comes from another site's page.")
            kind = headers.get("content-type", "").partition(";")[0].strip().lower()
            if rule.json and kind != "application/json":
                raise Refusal(415, "kind", "The body is JSON, and must say so: application/json.")
            body = _Body(receive, headers, rule.max_bytes)
        except Refusal as refusal:
            await self._refuse(refusal, scope, send)
            return
        try:
            await self._app(scope, body.receive, self._dressed(scope, headers, send, body))
        except Exception:
            if body.refusal is None:
                raise
        if body.refusal is not None and not body.answered:
            await self._refuse(body.refusal, scope, send)

    async def _refuse(self, refusal: Refusal, scope: Scope, send: Send) -> None:
        self._telemetry.refused(refusal.reason)
        await _answer(refusal, scope["path"], send)

    def _check(self, scope: Scope, headers: Headers, cost: float) -> None:
        """Address, rate and credentials. Raises `Refusal`."""
        if not self._access.answers_to(headers):
            raise Refusal(
                421, "host", "This server is not known under that name; open it as localhost."
            )
        client = client_of(_peer(scope), headers)
        wait_s = self._requests.take(client, cost)
        if wait_s:
            raise _too_fast(wait_s, "Too many requests; please wait.", "rate")
        path = scope["path"]
        api = is_api(path)
        if path not in UNGUARDED:
            self._check_credentials(client, headers, api)
        if path == "/metrics" and not self._access.auth and forwarded(headers, self._access):
            raise Refusal(403, "metrics", "Figures are for this machine, or behind --auth.")

    def _check_credentials(self, client: str, headers: Headers, api: bool) -> None:
        proves = presents_credentials(headers)
        wait_s = self._guesses.take(client) if proves else 0.0
        if wait_s:
            raise _too_fast(wait_s, "Too many wrong passwords; please wait.", "guesses")
        if self._access.admits(headers, api):
            if proves:
                self._guesses.give_back(client)
            return
        challenge = {} if api else {"www-authenticate": 'Basic realm="Unpaused", charset="UTF-8"'}
        wanted = "key" if api else "user name and password"
        raise Refusal(401, "auth", f"A valid {wanted} is needed here.", **challenge)

    def _dressed(self, scope: Scope, headers: Headers, send: Send, body: _Body) -> Send:
        """Answers go out with headers that keep browsers from guessing, and the page's pass."""
        gives_pass = self._access.auth and not is_api(scope["path"]) and not has_cookie(headers)
        gives_pass = gives_pass and scope["path"] not in UNGUARDED
        secure = scope["scheme"] == "https" or headers.get("x-forwarded-proto") == "https"

        async def dressed(message: Message) -> None:
            if body.refusal is not None and not body.answered:
                return  # what the application makes of a body that was cut off
            if message["type"] == "http.response.start":
                body.answered = True
                out = MutableHeaders(scope=message)
                out.setdefault("X-Content-Type-Options", "nosniff")
                out.setdefault("Referrer-Policy", "no-referrer")
                out.setdefault("X-Frame-Options", "DENY")
                if gives_pass:
                    pass_ = f"{COOKIE}={self._access.token}; Path=/; HttpOnly; SameSite=Lax"
                    out.append("Set-Cookie", pass_ + ("; Secure" if secure else ""))
            await send(message)

        return dressed

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        try:
            self._check(scope, headers, 1.0)
            if not self._access.same_origin(headers):
                raise Refusal(403, "origin", "another site's page")
            if self._sockets >= MAX_SOCKETS:
                raise Refusal(503, "sockets", "too many sockets")
        except Refusal as refusal:
            self._telemetry.refused(refusal.reason)
            await receive()
            await send({"type": "websocket.close", "code": 4403, "reason": refusal.message})
            return
        # The endpoint compares Origin with Host, which a tunnel may have changed on the way.
        checked = [(name, value) for name, value in scope["headers"] if name != b"origin"]
        self._sockets += 1
        try:
            await self._app({**scope, "headers": checked}, paced(receive), send)
        finally:
            self._sockets -= 1


class _Body:
    """A request's body on its way in: no more, and no slower, than is allowed."""

    def __init__(self, receive: Receive, headers: Headers, max_bytes: int) -> None:
        self.answered = False
        self.refusal: Refusal | None = None
        self._receive, self._left = receive, max_bytes
        self._complete = False
        self._deadline = asyncio.get_running_loop().time() + BODY_S
        declared = headers.get("content-length", "0")
        if not declared.isdecimal() or int(declared) > max_bytes:
            raise _too_large(max_bytes)
        self._max = max_bytes

    async def receive(self) -> Message:
        if self._complete:
            return await self._receive()
        left_s = self._deadline - asyncio.get_running_loop().time()
        try:
            message = await asyncio.wait_for(self._receive(), max(left_s, 0.0))
        except TimeoutError:
            self.refusal = Refusal(408, "slow", "The request took too long to arrive.")
            raise self.refusal from None
        self._left -= len(message.get("body", b""))
        if self._left < 0:
            self.refusal = _too_large(self._max)
            raise self.refusal
        self._complete = not message.get("more_body", False)
        return message


def paced(receive: Receive, clock: Callable[[], float] | None = None) -> Receive:
    """A socket's messages, no faster than is allowed: who sends more is read more slowly."""
    allowance = Allowance(MESSAGES_PER_S, MESSAGES_AT_ONCE, *([clock] if clock else []))

    async def next_message() -> Message:
        while wait_s := allowance.take():
            await asyncio.sleep(wait_s)
        return await receive()

    return next_message


def _peer(scope: Scope) -> str:
    return scope["client"][0] if scope.get("client") else ""


def _too_fast(wait_s: float, message: str, reason: str) -> Refusal:
    return Refusal(429, reason, message, **{"retry-after": str(max(1, round(wait_s)))})


def _too_large(max_bytes: int) -> Refusal:
    return Refusal(413, "size", f"A request has at most {max_bytes:,} bytes here.")


async def _answer(refusal: Refusal, path: str, send: Send) -> None:
    """The refusal in words; for the API in its clients' own shape."""
    if is_api(path):
        from ui.api.errors import error_body

        body = json.dumps(error_body(refusal.status, refusal.message)).encode()
        kind = b"application/json"
    else:
        body, kind = f"{refusal.message}\n".encode(), b"text/plain; charset=utf-8"
    headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode())]
    headers += [(name.encode(), value.encode()) for name, value in refusal.headers.items()]
    # What is still on its way is not read: the connection ends with the answer.
    headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
