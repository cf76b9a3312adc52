"""What a transcript says: finished or not, an answer to a reply or only a sign of listening."""

from __future__ import annotations

import pytest

from audio.completeness import (
    is_back_channel,
    is_complete,
    is_echo,
    is_stop,
    looks_complete,
    trails_off,
    words,
)

COMPLETE = """
What is the capital of France?
How many legs does a spider have?
Yes.
No!
Stop.
Thank you.
Tell me a story about the sea.
I am fine, thanks.
He said "go."
What is that?
Who are you?
Where are you from?
What is it made of?
My name is Joe.
It costs $5.
Really?
你好。
""".strip().splitlines()

INCOMPLETE = """
I would like to
I would like to.
I'd like to...
What is the weather in London, um
What is the weather in London, um.
Because
Because,
My name is
My name is.
So what I wanted to ask was
Can you tell me the
Can you tell me the.
I think that, uh
I want coffee and
I want coffee and.
The thing is -
Give me a
Well,
""".strip().splitlines()

BACK_CHANNELS = """
Mm-hm.
Mm-hmm.
mhm
Uh-huh.
Yeah.
Yeah, yeah.
Okay.
OK, okay.
Right.
Oh, wow.
I see.
Got it.
Of course.
Hmm.
Yes.
""".strip().splitlines()

NO_BACK_CHANNELS = """
No.
What?
Stop.
Wait.
Yeah, but what about the sea?
Okay, tell me more about it.
Why?
Hello?
Right, but no.
I see a ship.
...
""".strip().splitlines()

STOPS = """
Stop.
Stop!
Stop it.
Please stop.
Okay, stop.
Stop, stop.
Be quiet.
Shut up!
Quiet, please.
That's enough.
Never mind.
Wait.
Hold on.
Just a moment.
""".strip().splitlines()

NO_STOPS = """
Don't stop.
Stop the car.
When does it stop?
Wait for me there.
Yes.
Please.
""".strip().splitlines()


@pytest.mark.parametrize("text", COMPLETE)
def test_complete(text: str) -> None:
    assert looks_complete(text) and is_complete(text, 0.9)


@pytest.mark.parametrize("text", INCOMPLETE)
def test_incomplete(text: str) -> None:
    assert not looks_complete(text) and not is_complete(text, None)


@pytest.mark.parametrize("text", INCOMPLETE)
def test_what_trails_off_outweighs_a_sound_that_wavers(text: str) -> None:
    assert not is_complete(text, 0.45)


@pytest.mark.parametrize(
    "text, sound, complete",
    [
        # As Smart Turn judged these, in two synthetic voices, when they paused.
        ("What is the capital of France?", 0.988, True),
        ("Yes.", 0.817, True),
        ("I would like to.", 0.171, False),
        ("I'd like to know the weather in London.", 0.51, True),
        ("I'd like to know the weather in London.", 0.006, None),  # "um" was not transcribed
        ("My name is.", 0.616, None),
        ("Can you tell me, who wrote Hamlet?", 0.228, True),
        ("So what I wanted to ask was", 0.451, False),
        ("Because", 0.013, False),
        ("That is what it is.", 0.95, True),
        ("I said so.", 0.9, True),
        ("", 0.01, True),
        ("Thank you", 0.97, True),
    ],
)
def test_text_and_sound_together(text: str, sound: float, complete: bool | None) -> None:
    assert is_complete(text, sound) is complete


def test_what_trails_off_for_certain() -> None:
    assert trails_off("and then, um") and trails_off("the...") and not trails_off("")
    assert not trails_off("What are you thinking of?")


@pytest.mark.parametrize("text", BACK_CHANNELS)
def test_back_channel(text: str) -> None:
    assert is_back_channel(text)


@pytest.mark.parametrize("text", NO_BACK_CHANNELS)
def test_no_back_channel(text: str) -> None:
    assert not is_back_channel(text)


@pytest.mark.parametrize("text", STOPS)
def test_stop(text: str) -> None:
    assert is_stop(text) and not is_back_channel(text)


@pytest.mark.parametrize("text", NO_STOPS)
def test_no_stop(text: str) -> None:
    assert not is_stop(text)


@pytest.mark.parametrize(
    "heard, echo",
    [
        ("the sky is blue because air scatters light", True),
        ("sky is blue because the air scatters", True),
        ("scatters light short waves", True),
        ("blue", False),  # one word proves nothing
        ("is it", False),
        ("what about the sea and the ships", False),
        ("tell me about the sky", False),
    ],
)
def test_echo(heard: str, echo: bool) -> None:
    spoken = "The sky is blue because air scatters light. Short waves are scattered more."
    assert is_echo(heard, spoken) is echo


def test_words() -> None:
    assert words("Don\u2019t stop, Mm-hm: 3 of x_y!") == [
        "don't",
        "stop",
        "mm-hm",
        "3",
        "of",
        "x",
        "y",
    ]
