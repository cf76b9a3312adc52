"""Who is let in: the password, the API's key, other sites' pages, other names."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import httpx
import openai
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from engine.errors import UnpausedError
from tests.ui.api.conftest import Serve
from tests.ui.client import get, post
from ui.access import COOKIE, Access
from ui.page import Page

PASSWORD = ("ann", "s3cret:with colon")


@pytest.fixture(scope="module")
def locked(serve: Serve) -> Page:
    return serve(auth=":".join(PASSWORD))


@pytest.fixture(scope="module")
def keyed(serve: Serve) -> Page:
    return serve(api_key="k-123")


@pytest.fixture
def socket_of() -> Callable[..., Any]:
    def open_(page: Page, **headers: str) -> Any:
        url = page.url.replace("http", "ws") + "ws/voice"
        return connect(url, additional_headers=headers, origin=None, open_timeout=60)

    return open_


def test_without_the_password_only_the_health_is_told(locked: Page, socket_of: Any) -> None:
    for path in ("", "config", "theme.css", "assets/x.js", "metrics", "export/a/turn.json"):
        answer = get(f"{locked.url}{path}")
        assert answer.status_code == 401, path
        assert answer.headers["www-authenticate"].startswith("Basic ")
        assert "set-cookie" not in answer.headers
    assert post(f"{locked.url}gradio_api/queue/join", json={}).status_code == 401
    assert get(f"{locked.url}healthz").json()["status"] == "ok"
    answer = get(f"{locked.url}v1/models")
    assert answer.status_code == 401 and answer.json()["error"]["code"] == "invalid_api_key"
    with pytest.raises(InvalidStatus) as refused:
        socket_of(locked)
    assert refused.value.response.status_code == 403


def test_the_password_opens_the_page_and_its_cookie_the_rest(locked: Page, socket_of: Any) -> None:
    with httpx.Client(timeout=60) as browser:
        answer = browser.get(locked.url, auth=PASSWORD)
        assert answer.status_code == 200
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie and "SameSite=Lax" in cookie and "Secure" not in cookie
        assert PASSWORD[1] not in cookie
        assert browser.get(f"{locked.url}config").status_code == 200  # with the cookie alone
        value = browser.cookies[COOKIE]
    with socket_of(locked, Cookie=f"{COOKIE}={value}") as joined:
        joined.send(json.dumps({"type": "hello", "session": "none"}))
        with pytest.raises(Exception, match="4404"):
            joined.recv(timeout=60)
    for wrong in ("", "x", value[:-1], value + "x"):
        with pytest.raises(InvalidStatus):
            socket_of(locked, Cookie=f"{COOKIE}={wrong}")


def test_through_https_the_cookie_is_for_https(locked: Page) -> None:
    headers = {"x-forwarded-proto": "https"}
    answer = get(locked.url, auth=PASSWORD, headers=headers)
    assert "; Secure" in answer.headers["set-cookie"]


def test_programs_show_the_password_as_a_bearer_token(locked: Page) -> None:
    client = openai.OpenAI(base_url=f"{locked.url}v1", api_key=":".join(PASSWORD))
    assert client.models.list().data
    assert get(f"{locked.url}v1/models", auth=PASSWORD).status_code == 200
    bearer = {"authorization": f"Bearer {':'.join(PASSWORD)}"}
    assert get(locked.url, headers=bearer).status_code == 401  # pages want Basic


@pytest.mark.parametrize("value", ["Basic", "Basic ####", "Basic /w==", "Basic YQ==", "Digest x"])
def test_broken_credentials_are_wrong_credentials(locked: Page, value: str) -> None:
    headers = {"authorization": value, "x-forwarded-for": f"broken {value}"}
    assert get(locked.url, headers=headers).status_code == 401


def test_guessing_is_slowed_down_for_the_one_who_guesses(locked: Page) -> None:
    guesser = {"x-forwarded-for": "198.51.100.7"}
    codes = [
        get(locked.url, auth=("ann", f"guess {n}"), headers=guesser).status_code for n in range(14)
    ]
    assert codes[0] == 401 and codes[-1] == 429
    # Even the right one has to wait now; another address does not.
    assert get(locked.url, auth=PASSWORD, headers=guesser).status_code == 429
    assert get(locked.url, auth=PASSWORD).status_code == 200


def test_the_key_guards_the_api_alone(keyed: Page) -> None:
    assert get(keyed.url).status_code == 200
    with pytest.raises(openai.AuthenticationError, match="valid key"):
        openai.OpenAI(base_url=f"{keyed.url}v1", api_key="wrong", max_retries=0).models.list()
    assert openai.OpenAI(base_url=f"{keyed.url}v1", api_key="k-123").models.list().data


@pytest.mark.parametrize("origin", ["http://evil.test", "null", "http://127.0.0.1:1"])
def test_another_sites_page_may_neither_ask_nor_listen(
    page: Page, socket_of: Any, origin: str
) -> None:
    for path in ("v1/audio/transcriptions", "gradio_api/queue/join", "v1/chat/completions"):
        answer = post(f"{page.url}{path}", headers={"origin": origin}, content=b"{}")
        assert answer.status_code == 403, path
    with pytest.raises(InvalidStatus) as refused:
        socket_of(page, Origin=origin)
    assert refused.value.response.status_code == 403
    # Gradio gives pages on this machine leave to read; there is nothing in it to be read.
    assert get(page.url, headers={"origin": origin}).status_code == 403


def test_the_page_itself_may(page: Page, socket_of: Any) -> None:
    host = urlsplit(page.url).netloc
    with socket_of(page, Origin=f"http://{host}"):
        pass
    with socket_of(
        page, Origin="https://friends.example", **{"X-Forwarded-Host": "friends.example"}
    ):
        pass


def test_a_name_that_resolves_to_this_machine_is_not_enough(serve: Serve, page: Page) -> None:
    rebound = {"host": "evil.test:7860"}
    answer = get(page.url, headers=rebound)
    assert answer.status_code == 421 and "localhost" in answer.text
    assert get(page.url, headers={"host": "localhost:7860"}).status_code == 200
    known = serve(hosts=frozenset({"talk.example"}))
    assert get(known.url, headers={"host": "talk.example"}).status_code == 200
    shared = serve(share=True)
    assert get(shared.url, headers=rebound).status_code == 200


def test_figures_are_not_for_those_who_come_by_the_link(page: Page, locked: Page) -> None:
    assert "unpaused_turns_total" in get(f"{page.url}metrics").text
    through = {"x-forwarded-for": "198.51.100.9"}
    assert get(f"{page.url}metrics", headers=through).status_code == 403
    assert get(f"{locked.url}metrics", headers=through, auth=PASSWORD).status_code == 200


def test_options_and_environment() -> None:
    env = {"UNPAUSED_AUTH": "a:b", "UNPAUSED_API_KEY": "k", "UNPAUSED_HOSTS": "X.example, y"}
    read = Access.read(False, None, None, "0.0.0.0", env)
    assert (read.auth, read.api_key, read.hosts) == ("a:b", "k", {"x.example", "y"})
    assert Access.read(False, "c:d", "other", "h", env).auth == "c:d"
    assert Access.read(False, None, None, "h", {"UNPAUSED_AUTH": ""}).auth == ""
    with pytest.raises(UnpausedError, match="--api-key is empty"):
        Access.read(False, None, "", "h", {})
    for wrong in ("", "ann", ":", "ann:", ":secret"):
        with pytest.raises(UnpausedError, match="user:password"):
            Access.read(False, wrong, None, "h", {})
