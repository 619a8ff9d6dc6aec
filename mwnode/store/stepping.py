"""Work without threads: whoever holds the node says when it is done, so that a run can be repeated exactly."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")
OnWork = Callable[[], None]
"""Told that there is something to do, from whichever thread caused it; must not do it there and then."""


class SteppedFuture(Future[T]):
    """A future that no thread fulfils: who asks for its result does what waits until it is there."""

    def __init__(self, step: Callable[[], bool]) -> None:
        super().__init__()
        self._step = step

    def result(self, timeout: float | None = None) -> T:
        """The result. RuntimeError when nothing is left to do and it is still not there; ``timeout`` means nothing."""
        while not self.done():
            if not self._step():
                raise RuntimeError("nothing is left to do, and the result is not there")
        return super().result(timeout)


def future(step: Callable[[], bool] | None) -> Future[Any]:
    """A future for work that a thread does, or, with ``step``, for work that is done step by step."""
    return Future() if step is None else SteppedFuture(step)
