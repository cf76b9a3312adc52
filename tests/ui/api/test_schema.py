"""What the API's own schema allows and forbids, tried at random: never a fault of the server.

The schema is schemathesis's to explore; every answer must also have the shape it promises.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode

from tests.ui.api.test_openai import wav
from tests.ui.client import get
from ui.page import Page

EXAMPLES = int(os.environ.get("UNPAUSED_EXAMPLES", "25"))  # for each operation


CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
)
NAMES = {
    "/chat/completions": "fake-model",
    "/audio/transcriptions": "whisper-1",
    "/audio/speech": "tts-1",
}
OPERATIONS = [
    ("GET", "/models"),
    ("GET", "/models/{model}"),
    ("POST", "/chat/completions"),
    ("POST", "/audio/transcriptions"),
    ("POST", "/audio/speech"),
]


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_no_request_is_too_much(page: Page, method: str, path: str) -> None:
    schema = schemathesis.openapi.from_url(f"{page.url}v1/openapi.json")
    operation = schema[path][method]
    checks = [schemathesis.checks.CHECKS.get_one(name) for name in CHECKS]
    modes = [GenerationMode.POSITIVE, GenerationMode.NEGATIVE]

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(
        case=st.one_of(*(operation.as_strategy(generation_mode=mode) for mode in modes)),
        known=st.booleans(),
    )
    def holds(case: Any, known: bool) -> None:
        page.visitors.runtime.allowances.clear()
        if known and case.path_parameters:
            case.path_parameters |= {"model": "fake-model:other"}
        if known and isinstance(case.body, dict):  # a name drawn at random is nobody's
            case.body |= {"model": NAMES[path]}
            if "messages" in case.body:
                case.body |= {"messages": [{"role": "user", "content": "hello"}]}
            if "file" in case.body:
                case.body |= {"file": wav(0.2)}
            case.body.pop("max_completion_tokens", None)
            if isinstance(case.body.get("max_tokens"), int):
                case.body |= {"max_tokens": 3}
        case.validate_response(case.call(timeout=60), checks=checks)

    holds()


def test_the_schema_tells_every_operation(page: Page) -> None:
    paths = get(f"{page.url}v1/openapi.json").json()["paths"]
    told = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    assert told == set(OPERATIONS)
