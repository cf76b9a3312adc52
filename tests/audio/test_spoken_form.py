"""Text as it is read aloud."""

# ruff: noqa: RUF001

from __future__ import annotations

import pytest

from audio.spoken_form import spoken_form

TABLE = """
There are 3 of them. | There are three of them.
I have 1,234 apples. | I have one thousand two hundred and thirty-four apples.
1,234,567 | one million two hundred and thirty-four thousand five hundred and sixty-seven
It is 3.14. | It is three point one four.
It is 0.05 | It is zero point zero five
-5 degrees | minus five degrees
It fell to -5. | It fell to minus five.
Agent 007 | Agent zero zero seven
In 1984 he left. | In nineteen eighty-four he left.
In 2024, we won. | In twenty twenty-four, we won.
In 2000 | In two thousand
In 2007 | In two thousand and seven
In 1900. | In nineteen hundred.
the 1990s | the nineteen nineties
the 2020s | the twenty twenties
the 1800s | the one thousand eight hundreds
the '80s | the eighties
the 80s | the eighties
$5 | five dollars
$1 | one dollar
$3.50 | three dollars and fifty cents
$0.99 | ninety-nine cents
$1.01 | one dollar and one cent
$1,000 | one thousand dollars
$1.2 million | one point two million dollars
$5k | five thousand dollars
$2bn | two billion dollars
-$5 | minus five dollars
It costs $5. | It costs five dollars.
£20 | twenty pounds
£1.50 | one pound and fifty pence
€9.99 | nine euros and ninety-nine cents
5€ | five euros
¥500 | five hundred yen
50% | fifty percent
3.5 % | three point five percent
100%. | one hundred percent.
1st | first
2nd | second
the 3rd man | the third man
the 22nd of May | the twenty-second of May
21ST CENTURY | twenty-first CENTURY
100th | one hundredth
at 3:30 | at three thirty
at 3:05 pm | at three oh five P M
at 3:00 | at three o'clock
at 15:45 | at fifteen forty-five
at 8:00 a.m. | at eight A M.
at 5pm | at five P M
at 5 p.m. sharp | at five P M sharp
Come at 9 a.m. | Come at nine A M.
2024-05-01 | May first, twenty twenty-four
May 5, 2024 | May fifth, twenty twenty-four
Jan. 3 | January third
on Dec 25 | on December twenty-fifth
Sept. 11, 2001 | September eleventh, two thousand and one
1/2 | one half
3/4 of it | three quarters of it
2/3 | two thirds
1/8 | one eighth
24/7 | twenty-four seven
16/9 | sixteen over nine
5-10 people | five to ten people
1914–1918 | nineteen fourteen to nineteen eighteen
10-20% | ten to twenty percent
5 - 3 | five to three
call 555-1234 | call five five five, one two three four
call 212-555-1234 | call two one two, five five five, one two three four
(212) 555-1234 | two one two, five five five, one two three four
5 km | five kilometres
5km | five kilometres
1 km | one kilometre
a 10kg bag | a ten kilograms bag
100 km/h | one hundred kilometres per hour
60 mph | sixty miles per hour
20°C | twenty degrees Celsius
-40 °F | minus forty degrees Fahrenheit
90° | ninety degrees
16 GB | sixteen gigabytes
2.4 GHz | two point four gigahertz
500 ms | five hundred milliseconds
6 ft | six feet
250 ml | two hundred and fifty millilitres
#1 | number one
No. 5 | number five
~50 people | about fifty people
10x faster | ten times faster
10^6 | ten to the power of six
x² | x squared
5 m³ | five m cubed
3 * 4 | three times four
3*4=12 | three times four equals twelve
2 + 2 = 4 | two plus two equals four
6 × 7 | six times seven
World War II | World War two
Chapter IV | Chapter four
Python 3.11.2 | Python three point eleven point two
Dr. Smith | Doctor Smith
Mr. and Mrs. Brown | Mister and Missus Brown
Prof. Lee | Professor Lee
St. Paul | Saint Paul
on Main St. | on Main St.
apples, pears, etc. | apples, pears, et cetera.
pears, etc., too | pears, et cetera, too
e.g. this | for example this
(i.e. that) | (that is that)
A vs. B | A versus B
salt & pepper | salt and pepper
you w/o me | you without me
Apple Inc. | Apple incorporated.
Acme Co. is big | Acme company is big
1234567890123456 | one two three four five six seven eight nine zero one two three four five six
Hello, world! | Hello, world!
No numbers here. | No numbers here.
No. That is wrong. | No. That is wrong.
A1 and B2 | A1 and B2
the MP3 file | the MP3 file
covid-19 | covid-nineteen
"5" | "five"
(3) | (three)
1. First | one. First
I am 5'7" | I am five'seven"
""".strip().splitlines()


@pytest.mark.parametrize("line", TABLE)
def test_is_read_as(line: str) -> None:
    written, _, spoken = (part.strip() for part in line.partition(" | "))
    assert spoken_form(written) == spoken


def test_words_are_left_alone() -> None:
    text = "The sky is blue, because air scatters light; it's red at night!"
    assert spoken_form(text) == text


def test_nothing() -> None:
    assert spoken_form("") == ""


@pytest.mark.parametrize("text", ["9" * 5000, "1/" * 2000, "$" * 3000, "1-" * 3000, "a." * 3000])
def test_odd_input_ends_soon_and_is_no_fault(text: str) -> None:
    assert isinstance(spoken_form(text), str)
