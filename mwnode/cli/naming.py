"""What people may type in place of an identifier: a part of it, or what the thing is called."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from mwnode.cli.failure import Failure
from mwnode.narrative import short_id

SHOWN = 5
"""Candidates that are listed when a name means several."""


class Candidate(NamedTuple):
    """Something that can be meant; ``live`` when it is not over yet."""

    identifier: str
    label: str = ""
    live: bool = True
    group: str = ""
    """Another identifier by which it may be named, such as a Mission's Group."""


def pick(kind: str, text: str, candidates: Iterable[Candidate], see: str, *, whole: bool = False) -> str:
    """The identifier that ``text`` means: itself, a label, or a part of an identifier, in this order.

    Where it means several, what is not over yet is preferred. Failure for none or still several; ``kind`` and ``see``
    are for its text: what is looked for, and the command that lists it. With ``whole``, for what cannot be taken back,
    a part is not enough: an identifier, its short id, or a label that only one thing has.
    """
    known = list(candidates)
    if any(one.identifier == text for one in known):
        return text
    if whole:
        return _whole(kind, text, known, see)
    matches = (
        [one for one in known if one.group == text]
        or [one for one in known if one.label == text]
        or [one for one in known if text and (text in one.identifier or text in one.group)]
    )
    if len(matches) > 1:
        matches = [one for one in matches if one.live] or matches
    if len(matches) == 1:
        return matches[0].identifier
    if not matches:
        raise Failure(f"no {kind} of yours is called {text!r} or has it in its identifier: see `{see}`")
    raise Failure(f"{text!r} means {len(matches)} things: give more of the identifier ({_listed(matches)})")


def _whole(kind: str, text: str, known: Sequence[Candidate], see: str) -> str:
    matches = [one for one in known if text in (one.label, one.group, short_id(one.identifier))]
    if len(matches) == 1:
        return matches[0].identifier
    if matches:
        raise Failure(f"{text!r} means {len(matches)} things: give the whole identifier ({_listed(matches)})")
    near = [one for one in known if text and (text in one.identifier or text in one.label)]
    hint = f" ({_listed(near)})" if near else ""
    raise Failure(
        f"no {kind} of yours is called exactly {text!r}{hint}: give its whole name or identifier, see `{see}`"
    )


def _listed(matches: Sequence[Candidate]) -> str:
    shown = [f"{short_id(one.identifier)} {one.label}".rstrip() for one in matches[:SHOWN]]
    return ", ".join(shown) + (", ..." if len(matches) > SHOWN else "")
