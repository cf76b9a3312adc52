"""Who may use the server: the password, the API's key, and the addresses it answers under."""

from __future__ import annotations

import base64
import binascii
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import cookie_parser

from engine.errors import UnpausedError

AUTH_VARIABLE, KEY_VARIABLE, HOSTS_VARIABLE = (
    "UNPAUSED_AUTH",
    "UNPAUSED_API_KEY",
    "UNPAUSED_HOSTS",
)
COOKIE = "unpaused_pass"
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass
class Access:
    """The rules of one server. `auth` is "user:password" or ""; `link` is set by the tunnel.

    With `auth` everything but /healthz wants it: as HTTP Basic, as the cookie that a page gets
    once Basic was right (browsers send it with the voice socket, too), or, for programs that can
    only send a bearer token, as that. `api_key` opens the API alone.
    """

    share: bool = False
    auth: str = ""
    api_key: str = ""
    host: str = "127.0.0.1"
    hosts: frozenset[str] = frozenset()  # further names that the server is known under
    link: str = ""
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32))

    @classmethod
    def read(
        cls, share: bool, auth: str | None, api_key: str | None, host: str, env: Mapping[str, str]
    ) -> Access:
        """From the command line, and from the environment where it is silent.

        Raises `UnpausedError` for an `auth` without a user or a password, and an empty option.
        """
        said = auth is not None
        auth = env.get(AUTH_VARIABLE, "") if auth is None else auth
        user, colon, password = auth.partition(":")
        # An empty option is most likely a variable that is not set: that must not open the door.
        if (said or auth) and not (user and colon and password):
            raise UnpausedError(f"--auth (or {AUTH_VARIABLE}) is user:password, neither empty")
        if api_key == "":
            raise UnpausedError("--api-key is empty: name a key, or leave the option out")
        api_key = env.get(KEY_VARIABLE, "") if api_key is None else api_key
        names = env.get(HOSTS_VARIABLE, "").lower().split(",")
        return cls(share, auth, api_key, host, frozenset(filter(None, map(str.strip, names))))

    @property
    def open_to_all(self) -> bool:
        """Whether anybody who has the public link may come in."""
        return bool(self.link) and not self.auth

    def answers_to(self, headers: Headers) -> bool:
        """Whether Host names this server.

        Matters on a loopback address alone: there, another site's page can have its own name
        resolve to 127.0.0.1 and would then be of our origin (DNS rebinding).
        """
        if self.share or self.host not in _LOOPBACK:
            return True
        name = (urlsplit(f"//{headers.get('host', '')}").hostname or "").lower()
        return name in _LOOPBACK or name in self.hosts

    def same_origin(self, headers: Headers) -> bool:
        """Whether the page that asks is this server's own. Programs send no Origin."""
        origin = headers.get("origin")
        if origin is None:
            return True
        ours = {headers.get("host"), headers.get("x-forwarded-host"), urlsplit(self.link).netloc}
        return urlsplit(origin).netloc.lower() in {name.lower() for name in ours if name}

    def admits(self, headers: Headers, api: bool) -> bool:
        """Whether the request may come in, by all that it shows."""
        if not self.auth and not (api and self.api_key):
            return True
        scheme, _, value = headers.get("authorization", "").partition(" ")
        value = value.strip()
        if api and scheme.lower() == "bearer":
            return any(same(value, known) for known in (self.api_key, self.auth) if known)
        if not self.auth:
            return False
        if scheme.lower() == "basic" and same(_decoded(value), self.auth):
            return True
        return same(cookie_parser(headers.get("cookie", "")).get(COOKIE, ""), self.token)


def presents_credentials(headers: Headers) -> bool:
    """Whether the request tries to prove something: a wrong proof counts against the sender."""
    return "authorization" in headers


def has_cookie(headers: Headers) -> bool:
    return COOKIE in cookie_parser(headers.get("cookie", ""))


def client_of(peer: str, headers: Headers) -> str:
    """The address that limits go by.

    Through a tunnel or a proxy on this machine everyone comes from a loopback address; the last
    entry of X-Forwarded-For is then the one that our own proxy wrote.
    """
    forwarded = headers.get("x-forwarded-for", "").rpartition(",")[2].strip()
    return forwarded[:64] if forwarded and peer in _LOOPBACK else peer


def forwarded(headers: Headers, access: Access) -> bool:
    """Whether the request came through a proxy or the public link."""
    through = any(name.startswith("x-forwarded-") for name in headers)
    return through or bool(access.link and urlsplit(access.link).netloc == headers.get("host"))


def same(given: str, wanted: str) -> bool:
    """Equality in a time that tells nothing."""
    return hmac.compare_digest(given.encode(), wanted.encode())


def _decoded(value: str) -> str:
    try:
        return base64.b64decode(value, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""
