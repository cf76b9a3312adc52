"""The API as OpenAI's own client meets it."""

from __future__ import annotations

import io
import json
import re
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import soundfile
from openai.types.chat import ChatCompletionMessageParam

from tests.ui.api.conftest import SlowEngine
from tests.ui.client import get, post
from ui.limits import Allowances
from ui.page import Page

HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hello"}]
MODEL = "fake-model"


def say(client: Any, **options: object) -> str:
    made = client.chat.completions.create(model=MODEL, messages=HELLO, **options)
    return str(made.choices[0].message.content)


def test_models_are_listed_once_for_each_engine_that_runs_here(client: Any) -> None:
    names = [model.id for model in client.models.list()]
    assert names == [MODEL, f"{MODEL}:eager", f"{MODEL}:other", "whisper-1", "tts-1"]
    assert client.models.retrieve(f"{MODEL}:other").owned_by == "unpaused"
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.models.retrieve("gpt-9")


def test_a_completion_says_what_it_cost(client: Any) -> None:
    made = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=7)
    assert made.object == "chat.completion" and made.model == f"{MODEL}:eager"
    assert made.choices[0].finish_reason == "length" and made.choices[0].message.content
    usage = made.usage
    assert usage is not None and usage.completion_tokens == 7
    assert usage.total_tokens == usage.prompt_tokens + 7
    extension = usage.model_extra["unpaused"]
    assert extension["engine"] == "eager" and extension["ttft_ms"] > 0
    assert 0 < extension["tpot_ms"]["p50"] <= extension["tpot_ms"]["p99"]


def test_a_stream_is_the_completion_in_pieces(client: Any) -> None:
    whole = say(client, max_tokens=12)
    options = {"include_usage": True}
    chunks = list(
        client.chat.completions.create(
            model=MODEL,
            messages=HELLO,
            max_tokens=12,
            stream=True,
            stream_options=options,
        )
    )
    *parts, last, cost = chunks
    assert parts[0].choices[0].delta.role == "assistant"
    assert "".join(part.choices[0].delta.content or "" for part in parts) == whole
    assert len(parts) > 4 and last.choices[0].finish_reason == "length"
    assert not cost.choices and cost.usage is not None and cost.usage.completion_tokens == 12
    assert cost.usage.model_extra["unpaused"]["tpot_ms"]["p99"] > 0
    assert len({chunk.id for chunk in chunks}) == 1


def test_a_stream_without_include_usage_has_none(client: Any) -> None:
    made = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=3, stream=True)
    assert all(chunk.usage is None and chunk.choices for chunk in made)


def test_the_same_seed_draws_the_same_reply(client: Any) -> None:
    options = {"temperature": 1.5, "max_tokens": 16, "top_p": 0.95}
    assert say(client, seed=7, **options) == say(client, seed=7, **options)
    assert say(client, seed=7, **options) != say(client, seed=8, **options)
    assert say(client, **options) != say(client, **options)
    assert say(client, seed=-1, max_tokens=2)


def test_temperature_zero_ignores_the_seed(client: Any) -> None:
    greedy = {"temperature": 0, "max_tokens": 9}
    assert say(client, seed=1, **greedy) == say(client, seed=2, **greedy) == say(client, **greedy)


def test_a_stop_string_ends_the_reply_and_is_left_out(client: Any) -> None:
    whole = say(client, max_tokens=16)
    stop = whole[5:8]
    made = client.chat.completions.create(
        model=MODEL, messages=HELLO, max_tokens=16, stop=["never said", stop]
    )
    assert made.choices[0].message.content == whole[: whole.index(stop)]
    assert made.choices[0].finish_reason == "stop"


def test_a_stop_string_that_the_last_token_completes_is_no_lack_of_room(client: Any) -> None:
    stop = say(client, max_tokens=16)[-1]
    made = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=16, stop=stop)
    assert made.choices[0].finish_reason == "stop"


def test_a_chat_that_goes_on_prefills_what_is_new(client: Any) -> None:
    first = say(client, max_tokens=6)
    messages: list[ChatCompletionMessageParam] = [
        {"role": "system", "content": "be short"},
        *HELLO,
        {"role": "assistant", "content": first},
        {"role": "user", "content": [{"type": "text", "text": part} for part in ("and ", "now")]},
    ]
    costs = []
    for _ in range(2):
        made = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=4)
        assert made.usage is not None and made.usage.prompt_tokens_details is not None
        costs.append((made.usage.prompt_tokens, made.usage.prompt_tokens_details.cached_tokens))
    assert costs[1] == (costs[0][0], costs[0][0] - 1)


def test_the_engine_comes_from_the_suffix_or_the_header(client: Any) -> None:
    def engine(model: str, **headers: str) -> str:
        made = client.chat.completions.create(
            model=model, messages=HELLO, max_tokens=1, extra_headers=headers
        )
        return made.model

    other = {"X-Unpaused-Engine": "other"}
    assert engine(f"{MODEL}:other") == engine(MODEL, **other) == f"{MODEL}:other"
    with pytest.raises(openai.BadRequestError, match="different engines"):
        engine(f"{MODEL}:eager", **other)
    with pytest.raises(openai.NotFoundError, match="unavailable: no GPU"):
        engine(f"{MODEL}:graph")
    with pytest.raises(openai.NotFoundError, match="known: eager, other, graph"):
        engine(f"{MODEL}:warp")


@pytest.mark.parametrize(
    ("changes", "status", "said"),
    [
        ({"model": "gpt-9"}, 404, "does not exist here; there is `fake-model`"),
        ({"temperature": 3}, 400, "temperature"),
        ({"temperature": "hot"}, 400, "temperature"),
        ({"max_tokens": 0}, 400, "max_tokens"),
        ({"top_p": 0}, 400, "top_p"),
        ({"n": 2}, 400, "n: one answer is given to a request"),
        ({"n": True}, 400, "n: one answer"),
        ({"logprobs": True}, 400, "logprobs: log probabilities are not told here"),
        ({"frequency_penalty": 0.5}, 400, "frequency_penalty: use repetition_penalty"),
        ({"response_format": {"type": "json_object"}}, 400, 'the only format is {"type": "text"}'),
        ({"response_format": "text"}, 400, "response_format: the only format"),
        ({"messages": []}, 400, "messages"),
        ({"messages": [{"role": "user", "content": " \n"}]}, 400, "the text is empty"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, 400, "role user"),
        ({"messages": [{"role": "tool", "content": "x"}]}, 400, "messages.0.role"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "text": ""}]}]},
            400,
            "messages.0.content.0.type: Input should be 'text'",
        ),
        (
            {"messages": [{"role": "user", "content": None}]},
            400,
            "messages.0.content: must be a text or a list of text parts",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            400,
            "messages.0.content.0.text: Field required",
        ),
        ({"messages": [{"role": "user", "content": "x " * 2000}]}, 400, "context has room"),
        ({"temprature": 1}, 400, "Unrecognized request argument supplied: temprature"),
        ({"tools": [{}]}, 400, "tools: tools are not called here"),
        ({"stream_options": {"include_usage": True}}, 400, "stream_options"),
        ({"stop": ["a", "b", "c", "d", "e"]}, 400, "stop"),
        ({"stop": ""}, 400, "stop: String should have at least 1 character"),
        ({"stop": 5}, 400, "stop: must be a text or a list of up to four"),
        ({"stop": ["a", 5]}, 400, "stop.1: Input should be a valid string"),
    ],
)
def test_faults_have_openais_shape(
    page: Page, changes: dict[str, object], status: int, said: str
) -> None:
    body = {"model": MODEL, "messages": HELLO, "max_tokens": 2, "user": "me", **changes}
    answer = post(f"{page.url}v1/chat/completions", json=body)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert said in error["message"] and error["type"] == "invalid_request_error"
    assert "\n" not in error["message"]
    assert error["param"] is None or not re.search(r"[<\[(]", error["param"])


def test_what_clients_send_by_habit_changes_nothing(client: Any) -> None:
    plain = say(client, max_tokens=5)
    habits = {
        "n": 1, "user": "me", "logprobs": False, "top_logprobs": None, "logit_bias": {},
        "presence_penalty": 0, "frequency_penalty": 0.0, "response_format": {"type": "text"},
        "tools": [], "tool_choice": "none", "parallel_tool_calls": True, "store": False,
        "metadata": {"a": "b"}, "service_tier": "auto", "modalities": ["text"], "stop": None,
        "seed": None, "temperature": None, "stream_options": None, "reasoning_effort": None,
    }  # fmt: skip
    assert say(client, max_tokens=5, **habits) == plain


def test_an_answer_can_be_sent_back_as_the_client_has_it(client: Any) -> None:
    first = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=3)
    more = [*HELLO, first.choices[0].message, {"role": "user", "content": "and now"}]
    for messages in (more, [*HELLO, first.choices[0].message.model_dump(), more[-1]]):
        made = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=2)
        assert made.choices[0].message.content


def test_a_prompt_that_does_not_fit_is_told_as_such_in_a_stream_too(client: Any) -> None:
    long: list[ChatCompletionMessageParam] = [{"role": "user", "content": "word " * 1500}]
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(model=MODEL, messages=long, stream=stream)
        assert refused.value.code == "context_length_exceeded"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b"[" * 100_000])
def test_a_body_that_is_no_request_is_refused(page: Page, body: bytes) -> None:
    headers = {"content-type": "application/json"}
    answer = post(f"{page.url}v1/chat/completions", content=body, headers=headers)
    assert answer.status_code == 400 and answer.json()["error"]["message"]


def test_a_body_of_nothing_is_told_what_a_body_is(page: Page) -> None:
    headers = {"content-type": "application/json"}
    answer = post(f"{page.url}v1/chat/completions", content=b"", headers=headers)
    assert answer.json()["error"]["message"] == "The body must be a JSON object."


@pytest.mark.parametrize("content", ["\udfff", [{"type": "text", "text": "a\ud800"}]])
def test_half_a_character_is_refused_in_whichever_message(page: Page, content: object) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": content}, *HELLO]}
    headers = {"content-type": "application/json"}
    address, asked = f"{page.url}v1/chat/completions", json.dumps(body)  # which escapes it
    error = post(address, content=asked, headers=headers).json()["error"]
    assert error["message"] == "messages.0.content: the text is not valid Unicode"
    assert error["param"] == "messages.0.content"


def test_a_text_where_a_file_belongs_is_refused_in_words(page: Page) -> None:
    fields = {"model": (None, "whisper-1"), "file": (None, "not a file")}
    answer = post(f"{page.url}v1/audio/transcriptions", files=fields)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "file: must be a file"


def test_unknown_addresses_and_methods(page: Page) -> None:
    assert get(f"{page.url}v1/nothing").json()["error"]["type"] == "invalid_request_error"
    assert get(f"{page.url}v1/chat/completions").status_code == 405


def test_speech_comes_as_the_file_that_was_asked_for(client: Any) -> None:
    def speak(**options: str) -> bytes:
        return client.audio.speech.create(
            model="tts-1", voice="alloy", input="One two three. Four five.", **options
        ).content

    seconds = 0.5
    for kind in ("wav", "flac", "mp3", "opus"):
        samples, rate_hz = soundfile.read(io.BytesIO(speak(response_format=kind)))
        assert len(samples) / rate_hz == pytest.approx(seconds, abs=0.12), kind
        assert np.abs(samples).max() > 0.1
    assert len(speak(response_format="pcm")) / 2 / 24000 == pytest.approx(seconds, abs=0.01)
    assert soundfile.info(io.BytesIO(speak())).format == "MP3"


def test_speech_of_nothing_or_of_too_much_is_refused(client: Any) -> None:
    for text, said in (("...", "nothing in the input"), ("x" * 5000, "input"), ("", "input")):
        with pytest.raises(openai.BadRequestError, match=said):
            client.audio.speech.create(model="tts-1", voice="alloy", input=text)
    with pytest.raises(openai.BadRequestError, match="there is one speed"):
        client.audio.speech.create(model="tts-1", voice="alloy", input="hi", speed=2)
    with pytest.raises(openai.NotFoundError):
        client.audio.speech.create(model="tts-9", voice="alloy", input="hi")


def wav(seconds: float = 1.0) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, np.zeros(int(16000 * seconds)), 16000, format="WAV")
    return file.getvalue()


def test_transcriptions(client: Any) -> None:
    make = client.audio.transcriptions.create
    assert make(model="whisper-1", file=("a.wav", wav())).text == "Why is the sky blue?"
    text = make(model="whisper-1", file=("a.wav", wav()), response_format="text")
    assert str(text) == "Why is the sky blue?\n"
    assert make(
        model="whisper-1", file=("a.wav", wav()), prompt="Hm.", language="en", temperature=0
    )
    verbose = make(model="whisper-1", file=("a.wav", wav(2)), response_format="verbose_json")
    assert verbose.duration == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"language": "de"}, "language: this server hears 'en'"),
        ({"temperature": 0.4}, "temperature: the likeliest words"),
        ({"stream": True}, "stream: the transcript comes whole"),
        ({"response_format": "srt"}, "response_format: Input should be 'json', 'text' or"),
        ({"response_format": "verbose_json", "timestamp_granularities": ["word"]}, "has no times"),
    ],
)
def test_what_a_transcript_cannot_be_is_said(
    client: Any, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=re.escape(said)):
        client.audio.transcriptions.create(model="whisper-1", file=("a.wav", wav()), **options)


@pytest.mark.parametrize("content", [b"", b"not audio at all", wav()[:100], b"RIFF" * 50])
def test_what_is_no_audio_is_refused_without_telling_a_path(client: Any, content: bytes) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.audio.transcriptions.create(model="whisper-1", file=("a.wav", content))
    assert "the file" in str(refused.value) and "unpaused-" not in str(refused.value)


def test_a_full_queue_is_a_rate_limit_with_a_time(
    page: Page, client: Any, slow: SlowEngine
) -> None:
    gate = page.visitors.runtime.gate
    tickets = [gate.enter(f"visitor {number}") for number in range(17)]
    try:
        with pytest.raises(openai.RateLimitError) as refused:
            say(client)
        assert refused.value.code == "rate_limit_exceeded"
        assert int(refused.value.response.headers["retry-after"]) >= 1
    finally:
        for ticket in tickets:
            ticket.leave()


def test_who_asks_too_often_is_told_when_to_come_back(
    page: Page, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    slowly = Allowances(1 / 600, 2)
    monkeypatch.setattr(page.visitors.runtime, "allowances", slowly)
    say(client, max_tokens=1)
    say(client, max_tokens=1)
    with pytest.raises(openai.RateLimitError, match="too fast") as refused:
        say(client, max_tokens=1)
    assert 300 < int(refused.value.response.headers["retry-after"]) <= 600


def test_a_wait_is_told_in_the_stream(page: Page, client: Any) -> None:
    gate = page.visitors.runtime.gate
    holder = gate.enter("someone")
    body = {"model": MODEL, "messages": HELLO, "max_tokens": 2, "stream": True}
    with httpx.stream("POST", f"{page.url}v1/chat/completions", json=body, timeout=60) as answer:
        lines = answer.iter_lines()
        assert next(line for line in lines if line.startswith(":")).startswith(": waiting, 1")
        holder.leave()
        assert "data: [DONE]" in list(lines)


def test_clients_do_not_share_a_cache(client: Any) -> None:
    def cached(address: str) -> int:
        made = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "what is my secret?"}],
            max_tokens=1,
            extra_headers={"X-Forwarded-For": address},
        )
        return int(made.usage.prompt_tokens_details.cached_tokens)

    assert cached("198.51.100.31") == 0
    assert cached("198.51.100.32") == 0
    assert cached("198.51.100.31") > 20
