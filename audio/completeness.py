"""What the words of an utterance say about it: finished or not, and meant for a reply or not.

Pure functions of text. They are the fallback where no model judges the sound of a pause, and they
tell an interruption from a listener's "mm-hm".
"""

from __future__ import annotations

import re
from difflib import SequenceMatcher


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_WORD = re.compile(r"[^\W_]+(?:['\u2019-][^\W_]+)*")
_FINAL = (".", "!", "?", "。", "！", "？")  # noqa: RUF001
_CLOSING = "\"'\u201d\u2019\u00bb)]"
# After these, more is to come, whatever mark the transcriber put there.
_FILLERS = _set("um uh umm uhm er erm uhh hmm hm")
_LEANING = _set(
    "a an the and or but because if to of from with into than my your our their i i'd i'm i'll "
    "we'd you'd let's"
)
# After these it mostly is, but "That's what it is." and "I said so." are sentences.
_OPEN = _set(
    "so in on at by for about like as that which who his her its this these those is are was were "
    "be we would could should can will please"
)
# What listeners say while they go on listening; never "no", "stop", "wait" or "what".
_BACK_CHANNEL = _set(
    "mm mmm mm-hm mm-hmm mmhm mmhmm mhm uh-huh uhhuh huh hmm hm ah oh ooh aha yeah yep yup yes ok "
    "okay right sure cool nice great wow really exactly totally true indeed"
)
_BACK_CHANNEL_PHRASES = ("i see", "got it", "of course", "oh really", "makes sense", "go on")
_BACK_CHANNEL_MAX_WORDS = 3
_STOP_COMMANDS = _set("stop quiet enough silence wait shush")
_STOP_PHRASES = (
    "stop it", "stop that", "stop talking", "stop speaking", "be quiet", "shut up", "hold on",
    "that's enough", "thats enough", "never mind", "nevermind", "one moment", "just a moment",
)  # fmt: skip
_POLITE = _set("please ok okay no hey just now thanks")
_SOUNDS_COMPLETE = 0.5  # as Smart Turn itself decides
_SURE = 0.8
_WAVERS = 0.15  # finished sentences of synthetic voices measured 0.23 and more, "Because" 0.01
_ECHO_MIN_WORDS = 3
_ECHO_SHARE = 0.6


def words(text: str) -> list[str]:
    """The words of `text`, in lower case, without punctuation."""
    return _WORD.findall(text.lower().replace("\u2019", "'"))


def looks_complete(text: str) -> bool:
    """Whether a transcript reads as a finished utterance.

    Whisper ends what sounds finished with a full stop or a question mark, and what breaks off
    with three dots, a comma or nothing.
    """
    spoken = words(text)
    if trails_off(text) or not spoken or (spoken[-1] in _OPEN and not _asks(text)):
        return False
    return _bare(text).endswith(_FINAL)


def is_complete(text: str, sound: float | None) -> bool | None:
    """Whether the speaker has finished, by the transcript and by the probability that a model
    gives to the sound (None without one). None where the two contradict each other.

    A "to." or "um" at the end outweighs the sound, an "is." wants it to be sure; a full sentence
    helps it where it wavers. What has no words waits for nothing.
    """
    spoken = words(text)
    if not spoken:
        return True
    if trails_off(text):
        return False
    if sound is None:
        return looks_complete(text)
    if spoken[-1] in _OPEN and not _asks(text):
        return True if sound >= _SURE else None if sound >= _SOUNDS_COMPLETE else False
    if sound >= _SOUNDS_COMPLETE or (sound >= _WAVERS and looks_complete(text)):
        return True
    return None if looks_complete(text) else False


def trails_off(text: str) -> bool:
    """Whether the speaker stopped in the middle for certain: at "um", "and", "the" or "..."."""
    bare, spoken = _bare(text), words(text)
    if not spoken:
        return False
    if bare.endswith(("...", "…", ",", "-", "—")) or spoken[-1] in _FILLERS:
        return True
    # "What is that?" ends with a leaning word and is complete; "I want the." is not.
    return spoken[-1] in _LEANING and not _asks(text)


def _asks(text: str) -> bool:
    """Whether it was said as a question or an exclamation, which no trailing off sounds like."""
    return _bare(text).endswith(("?", "？", "!"))  # noqa: RUF001


def _bare(text: str) -> str:
    return text.rstrip().rstrip(_CLOSING)


def is_back_channel(text: str) -> bool:
    """Whether `text` only says "I am listening"."""
    spoken = words(text)
    if not spoken or len(spoken) > _BACK_CHANNEL_MAX_WORDS:
        return False
    return " ".join(spoken) in _BACK_CHANNEL_PHRASES or all(w in _BACK_CHANNEL for w in spoken)


def is_stop(text: str) -> bool:
    """Whether `text` asks for silence and for nothing else: "Stop", "please be quiet"."""
    said = words(text)
    core = [word for word in said if word not in _POLITE]
    phrases = {" ".join(said), " ".join(core)}
    return not phrases.isdisjoint(_STOP_PHRASES) or (
        bool(core) and all(word in _STOP_COMMANDS for word in core)
    )


def is_echo(text: str, spoken: str) -> bool:
    """Whether `text` is what a loudspeaker has just said (`spoken`), heard by the microphone.

    Judged by the share of its words that stand in `spoken` in the same order; one or two words
    prove nothing.
    """
    heard = words(text)
    if len(heard) < _ECHO_MIN_WORDS:
        return False
    blocks = SequenceMatcher(None, heard, words(spoken), autojunk=False).get_matching_blocks()
    return sum(block.size for block in blocks) >= _ECHO_SHARE * len(heard)
