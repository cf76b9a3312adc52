"""Which requests the server takes: an allow-list.

Gradio offers some eighty routes; the page uses a dozen, and only those are let through. A new
route needs a line here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_MB = 1 << 20


@dataclass(frozen=True)
class Rule:
    """Requests that are let through: their paths, and how much they may send and cost."""

    methods: frozenset[str]
    path: re.Pattern[str]
    max_bytes: int = 0
    cost: float = 1.0
    json: bool = False  # the body must say that it is JSON


def _rule(
    methods: str, path: str, max_bytes: int = 0, cost: float = 1.0, json: bool = False
) -> Rule:
    return Rule(frozenset(methods.split()), re.compile(path), max_bytes, cost, json)


# Bodies: a typed message has at most 8,000 characters, of up to twelve bytes each in JSON.
RULES = (
    _rule("GET HEAD", r"/(assets|static)/.+", cost=0.1),
    _rule("GET HEAD", r"/(config|theme\.css|favicon\.ico|manifest\.json|robots\.txt)?"),
    _rule("GET", r"/gradio_api/(queue/data|heartbeat/\w+|startup-events)"),
    _rule("POST", r"/gradio_api/(queue/join|cancel)", 256 * 1024, json=True),
    _rule("GET", r"/export/[\w-]+/[\w.-]+"),
    _rule("GET HEAD", r"/(healthz|metrics)"),
    _rule("POST", r"/v1/audio/transcriptions", 25 * _MB),
    _rule("POST", r"/v1/(chat/completions|audio/speech)", _MB, json=True),
    _rule("GET HEAD POST PUT PATCH DELETE OPTIONS", r"/v1(/.*)?", _MB),
)
UNGUARDED = ("/healthz", "/gradio_api/startup-events")  # say nothing but that there is a server


class Refusal(Exception):
    """What is answered instead; `reason` is for the counters."""

    def __init__(self, status: int, reason: str, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status, self.reason, self.message, self.headers = status, reason, message, headers


def find_rule(method: str, path: str) -> Rule:
    """The rule that lets the request through. Raises `Refusal` without one."""
    matching = [rule for rule in RULES if rule.path.fullmatch(path)]
    if not matching or ".." in path:
        raise Refusal(404, "path", "There is nothing at this address.")
    for rule in matching:
        if method in rule.methods:
            return rule
    allowed = ", ".join(sorted({method for rule in matching for method in rule.methods}))
    raise Refusal(405, "method", f"{method} is not possible here.", allow=allowed)


def is_api(path: str) -> bool:
    return path == "/v1" or path.startswith("/v1/")
