from __future__ import annotations

import random
import re

import pytest

from audio.sentences import ClauseChunker, speakable

SPOKEN = [
    ("plain", "Hello there, friend.", "Hello there, friend."),
    ("bold", "This is **very** important.", "This is very important."),
    ("italic", "*Note:* this is _fine_.", "Note: this is fine."),
    ("bold italic over words", "***All of this*** counts.", "All of this counts."),
    ("emphasis left open", "It is **bold and goes on", "It is bold and goes on."),
    ("strike", "It is ~~bad~~ good.", "It is bad good."),
    ("code span", "Call `print` now.", "Call print now."),
    ("snake case", "Set `max_new_tokens` higher.", "Set max new tokens higher."),
    ("dunder", "Use __init__ here.", "Use init here."),
    ("header", "# The sky\nIt is blue.", "The sky. It is blue."),
    ("deep header", "###### Deep\n\nText.", "Deep. Text."),
    ("bullets", "- apples\n* pears\n+ plums", "apples. pears. plums."),
    ("tasks", "- [ ] wash up\n- [x] cook", "wash up. cook."),
    ("ordered", "1. Mix it.\n2. Bake it.", "1. Mix it. 2. Bake it."),
    ("ordered, other mark", "1) Mix it\n2) Bake it", "1) Mix it. 2) Bake it."),
    ("quote", "> Be yourself.\n> Now.", "Be yourself. Now."),
    ("rule", "One.\n\n---\n\nTwo.", "One. Two."),
    ("table", "Here:\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\nDone.", "Here: Done."),
    ("fenced code", "Do this:\n```python\nprint('x. y')\n```\nDone.", "Do this: Done."),
    ("fence never closed", "Do this:\n```python\nprint(1)", "Do this:"),
    ("thinking", "<think>\nHm. Let me see.\n</think>\n\nParis.", "Paris."),
    ("thinking begun by the template", "Hm.\n</think>\nParis.", "Hm. Paris."),
    ("thinking never ended", "<think>I wonder. And wonder", ""),
    ("link", "See [the docs](https://a.b/c?d=1).", "See the docs."),
    ("image", "Look: ![a cat](cat.png) nice.", "Look: a cat nice."),
    ("address", "Go to https://a.b/c.html, then stop.", "Go to, then stop."),
    ("address in brackets", "Go (see <https://a.b>) now.", "Go (see) now."),
    ("bare www", "Visit www.example.com today.", "Visit today."),
    ("emoji", "Well done! 🎉 Bye 👋🏽.", "Well done! Bye."),
    ("emoji with joiners", "A 👨‍👩‍👧 family ❤️ here.", "A family here."),
    ("keycap", "Press 1️⃣ now.", "Press 1 now."),
    ("only emoji", "😀😀", ""),
    ("entities and tags", "Salt &amp; pepper<br>here.", "Salt & pepper here."),
    ("escaped", r"Five \* three is \#1.", "Five three is #1."),
    ("product", "2 * 3 is 6.", "2 times 3 is 6."),
    ("signs that are said", "A & B = 50% + $3.", "A & B = 50% + $3."),
    ("numbers", "It is 3.14 or 1,234.56.", "It is 3.14 or 1,234.56."),
    ("only a number", "42", "42."),
    ("soft line break", "It is\nblue.", "It is blue."),
    ("paragraphs", "It is blue\n\nNo, green", "It is blue. No, green."),
    ("quotation", 'He said "Go." and left.', 'He said "Go." and left.'),
    ("hash tag", "#Heading is C# and #1.", "Heading is C# and #1."),
    ("control characters", "a\0b \ufeffhello", "ab hello."),
    ("nothing", "", ""),
    ("only marks", "** ``` --- ###", ""),
]


@pytest.mark.parametrize("name, text, spoken", SPOKEN, ids=[row[0] for row in SPOKEN])
def test_speakable(name: str, text: str, spoken: str) -> None:
    assert speakable(text) == spoken


PIECES = [
    (
        "first clause, then sentences",
        "The sky is blue, because air scatters light, and so on. It is red at night, too. Yes.",
        [
            "The sky is blue,",
            "because air scatters light, and so on.",
            "It is red at night, too.",
            "Yes.",
        ],
    ),
    ("too short a first clause", "Yes, of course, I do.", ["Yes, of course,", "I do."]),
    ("short sentences together", "Oh! No. Really? Yes.", ["Oh! No. Really?", "Yes."]),
    ("decimal", "It is about 3.14 or so, right.", ["It is about 3.14 or so,", "right."]),
    ("thousands", "It costs 1,234,567 dollars. Yes.", ["It costs 1,234,567 dollars.", "Yes."]),
    ("comma beside a digit", "Counting 1, 2, 3, we go.", ["Counting 1, 2, 3, we go."]),
    ("title", "I have met Dr. Smith in May. Yes.", ["I have met Dr. Smith in May.", "Yes."]),
    (
        "Latin",
        "Some animals, e.g. cats and i.e. lions vs. dogs. So.",
        ["Some animals,", "e.g. cats and i.e. lions vs. dogs.", "So."],
    ),
    (
        "initials",
        "The president of the U.S. is J. R. Smith. He is.",
        ["The president of the U.S. is J. R. Smith.", "He is."],
    ),
    ("time", "We meet at 5 p.m. on Monday. Right.", ["We meet at 5 p.m. on Monday.", "Right."]),
    ("year ends a sentence", "It was built in 1889. It is.", ["It was built in 1889.", "It is."]),
    ("item number", "1. Preheat the oven. 2. Mix.", ["1. Preheat the oven.", "2. Mix."]),
    (
        "ellipsis",
        "Well... let me think about it... Yes.",
        ["Well... let me think about it...", "Yes."],
    ),
    ("quoted", 'She said "Come in here." He did.', ['She said "Come in here."', "He did."]),
    ("brackets", "It works (as I said before). Good.", ["It works (as I said before).", "Good."]),
    ("exclamations", "That is wonderful!!! I mean it.", ["That is wonderful!!!", "I mean it."]),
    (
        "first sentence without punctuation",
        "Plants make their own food from light because they can.",
        ["Plants make their own food", "from light because they can."],
    ),
    (
        "first sentence up to a clause",
        "Plants make their own food because they can.",
        ["Plants make their own food", "because they can."],
    ),
    (
        "lines",
        "Ingredients:\n\n- two eggs\n- a cup of milk",
        ["Ingredients:", "two eggs. a cup of milk."],
    ),
    (
        "code between",
        "Run this first:\n```\nx. y, z\n```\nThen stop.",
        ["Run this first:", "Then stop."],
    ),
    ("no word at all", "... 😀 !!!", []),
]


def cut(text: str, sizes: random.Random | None = None) -> list[str]:
    chunker, pieces = ClauseChunker(), []
    while text:
        size = sizes.randint(1, 6) if sizes else len(text)
        pieces += chunker.push(text[:size])
        text = text[size:]
    return pieces + chunker.flush()


@pytest.mark.parametrize("name, text, pieces", PIECES, ids=[row[0] for row in PIECES])
def test_pieces(name: str, text: str, pieces: list[str]) -> None:
    assert cut(text) == pieces


TEXTS = [row[1] for row in SPOKEN] + [row[1] for row in PIECES]


@pytest.mark.parametrize("seed", range(20))
def test_how_the_stream_is_cut_makes_no_difference(seed: int) -> None:
    for text in [*TEXTS, "\n\n".join(TEXTS[:10]), " ".join(TEXTS[-15:])]:
        assert cut(text, random.Random(seed)) == cut(text), text


@pytest.mark.parametrize("seed", range(20))
def test_pieces_of_plain_text_lose_no_word(seed: int) -> None:
    rng = random.Random(seed)
    vocabulary = ["the", "sky", "Dr.", "3.14", "1,000", "U.S.", "(so)", "blue,", "and", "it.", "a!"]
    text = " ".join(rng.choice(vocabulary) for _ in range(300))
    pieces = cut(text, rng)
    assert " ".join(pieces).rstrip(".").split() == text.rstrip(".").split()
    assert len(pieces) > 5


def test_first_clause_comes_as_soon_as_it_is_certain() -> None:
    chunker = ClauseChunker()
    for delta in ("The", " sky", " is", " blue", ","):
        assert chunker.push(delta) == []
    assert chunker.push(" as") == ["The sky is blue,"]


def test_a_number_still_arriving_is_held() -> None:
    chunker = ClauseChunker()
    pieces = []
    for delta in ("It weighs about 3", ".", "14", " kilograms", ".", " Yes"):
        pieces += chunker.push(delta)
    assert pieces == ["It weighs about 3.14 kilograms."]


def test_no_punctuation_for_60_tokens_is_cut_at_a_space() -> None:
    words = ("photosynthesis", "green", "of", "plants", "light", "the", "energy")
    text = " ".join(random.Random(4).choice(words) for _ in range(200))
    chunker, pieces = ClauseChunker(), []
    most = 0
    for count, word in enumerate(text.split()):
        new = chunker.push(word + " ")
        pieces += new
        held = count + 1 - len(" ".join(pieces).split())
        most = max(most, held)
    assert most <= 60
    pieces += chunker.flush()
    assert " ".join(pieces).rstrip(".") == text.rstrip(".")
    assert not any(piece.endswith((" of", " the")) for piece in pieces[:-1])


def test_a_word_without_end_is_bounded() -> None:
    chunker = ClauseChunker()
    pieces = [piece for _ in range(5000) for piece in chunker.push("abcd")]
    assert max(map(len, pieces)) < 600
    assert len("".join(pieces)) > 19_000


@pytest.mark.parametrize(
    "word", ["9" * 3000, "a" * 201, "ab/cd?" * 200, f"See:https://example.org/{'a' * 900}."]
)
def test_a_long_word_is_bounded_however_it_arrives(word: str) -> None:
    text = f"Before {word} and after it."
    pieces = cut(text)
    assert max(map(len, pieces)) < 600
    assert pieces == cut(text, random.Random(1))


@pytest.mark.parametrize("text", ["9" * 3000, "1." * 1500, "Pi is 3." + "1415" * 500, "1 " * 900])
def test_figures_without_end_are_spoken_in_short_pieces(text: str) -> None:
    pieces = cut(text)
    # Of 80 figures the voice makes 20 s, for which it needs 0.6 GB; of 400, 3.4 GB.
    assert max(sum(map(str.isdigit, piece)) for piece in pieces) <= 80
    assert "".join(pieces).replace(" ", "").rstrip(".") == text.replace(" ", "").rstrip(".")
    assert pieces == cut(text, random.Random(2))


def test_an_address_without_end_is_not_spoken() -> None:
    chunker = ClauseChunker()
    pieces = chunker.push("See [this page](https://")
    pieces += [piece for _ in range(1000) for piece in chunker.push("ab/cd?")]
    pieces += chunker.push(") for more of it.")
    assert " ".join(pieces + chunker.flush()) == "See this page for more of it."


def test_hidden_text_is_not_kept() -> None:
    chunker = ClauseChunker()
    chunker.push("<think>")
    for _ in range(1000):
        assert chunker.push("hidden. words, ") == []
    assert len(chunker._spoken._hidden._held) < 20


def test_marks_across_deltas() -> None:
    chunker = ClauseChunker()
    pieces = []
    for delta in (
        "<",
        "thi",
        "nk>no. way, here</th",
        "ink>Yes, it is like so. `",
        "``\ncode. x\n``",
        "` End",
    ):
        pieces += chunker.push(delta)
    assert pieces + chunker.flush() == ["Yes, it is like so.", "End."]


def test_nothing_speakable_is_ever_without_a_word() -> None:
    for text in TEXTS:
        assert all(re.search(r"\w", piece) for piece in cut(text))


def test_pieces_grow_with_the_speech_that_covers_their_synthesis() -> None:
    text = "and then the old sailor looked at the quiet harbour " * 20
    lengths = [len(piece.split()) for piece in cut(text)]
    assert lengths[0] <= 8 and lengths[1] <= 16 and lengths[2] <= 28
    assert max(lengths) <= 45 and max(lengths[3:]) > 28


def test_a_clause_is_not_begun_with_a_word_that_leans_on_it() -> None:
    pieces = cut("The art of playing the piano is as much about practice as about talent.")
    assert not pieces[0].endswith(" is")
