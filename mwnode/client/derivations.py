"""Walking the graph of what was made of what, over as many answers of the node as it takes. Pure.

An answer tells a bounded part, and from where to go on; the places still to be asked about are kept here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, Literal, Protocol

Direction = Literal["sources", "derived"]


class Asks(Protocol):
    """``HttpClient.provenance``, or what stands for it."""

    def __call__(self, content_hash: str, direction: Direction, *, depth: int, after: str | None) -> dict[str, Any]: ...


class Provenances:
    """The steps of one walk, as an iterator: dictionaries as the node gives them, ``depth`` counted from the start."""

    def __init__(self, ask: Asks, content_hash: str, direction: Direction, depth: int) -> None:
        self._ask = ask
        self._direction = direction
        self._depth = depth
        self._places: deque[tuple[str, int, str | None]] = deque([(content_hash, 0, None)])
        self._asked: dict[str, int] = {}
        """Bytes from which all steps were told, and how far from the start they were then."""
        self.contents: dict[str, dict[str, Any]] = {}
        """What the node told of the bytes met so far, by hash."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        told: set[tuple[str, str]] = set()
        while self._places:
            content_hash, depth, after = self._places.popleft()
            if after is None and self._asked.get(content_hash, depth + 1) <= depth:
                continue
            answer = self._ask(content_hash, self._direction, depth=self._depth - depth, after=after)
            left = [
                (place["contentHash"], depth + place["depth"], place.get("after")) for place in answer["unfinished"]
            ]
            self._note(answer, depth, {name for name, _, _ in left})
            self._places.extend(left)
            for step in answer["derivations"]:
                # Two places may lead to the same bytes, and from there over the same steps.
                key = step["artifactId"], step["sourceHash"]
                if key not in told:
                    told.add(key)
                    yield {**step, "depth": depth + step["depth"]}

    def _note(self, answer: dict[str, Any], depth: int, left: set[str]) -> None:
        for content in answer["contents"]:
            name, met = content["contentHash"], {**content, "depth": depth + content["depth"]}
            known = self.contents.setdefault(name, met)
            if met["depth"] < known["depth"]:
                self.contents[name] = met
            if name not in left and met["depth"] < self._depth:
                self._asked[name] = min(met["depth"], self._asked.get(name, self._depth))
