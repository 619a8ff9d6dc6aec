"""What an executor said, made fit for a signed document and a terminal. Pure.

Its last lines go into failure reports that many read and nobody can take back: no terminal escapes, no characters that
hide or reorder others, nothing of the secrets that were handed to it, and not without end (R-12-13).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

REDACTED = "[redacted]"
SECRET_CHARACTERS_MIN = 12
"""Shorter pieces of a secret are found everywhere by chance, and open nothing."""

_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f]).*?(?:\x07|\x1b\\|\x9c|$)"  # OSC, DCS and other strings
    r"|\x1b[ -/]*[0-~]?",  # all other sequences
    re.DOTALL,
)
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_ENDS = re.compile(r"\r\n?")


def plain(text: str, secrets: Iterable[str] = (), *, cut: bool = False) -> str:
    """The text without escapes, hidden characters and secrets. ``cut`` says that something stood before it, so that it
    may begin within a secret."""
    text = _ENDS.sub("\n", _ESCAPES.sub("", text))
    text = "".join(one for one in text if one in "\n\t" or unicodedata.category(one) not in _HIDDEN)
    for secret in sorted(set(secrets), key=len, reverse=True):
        if len(secret) < SECRET_CHARACTERS_MIN:
            continue
        text = text.replace(secret, REDACTED)
        if cut:
            text = _without_end_of(secret, text)
    return text


def _without_end_of(secret: str, text: str) -> str:
    for start in range(1, len(secret) - SECRET_CHARACTERS_MIN + 1):
        if text.startswith(secret[start:]):
            return REDACTED + text[len(secret) - start :]
    return text


def parts_of(token: str) -> tuple[str, ...]:
    """A token, and each of its parts, which would do a good deal of harm alone."""
    return (token, *token.split("."))
