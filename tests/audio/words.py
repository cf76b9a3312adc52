"""Transcripts compared word by word."""

from __future__ import annotations

import re


def words(text: str) -> list[str]:
    return re.findall(r"[a-z']+", text.lower())


def errors(expected: str, found: str) -> int:
    """Word edits between the two (Levenshtein)."""
    row = list(range(len(words(found)) + 1))
    for i, left in enumerate(words(expected), 1):
        diagonal, row[0] = row[0], i
        for j, right in enumerate(words(found), 1):
            best = min(row[j] + 1, row[j - 1] + 1, diagonal + (left != right))
            diagonal, row[j] = row[j], best
    return row[-1]
