"""How long a client waits before it connects again."""

from __future__ import annotations

import random

from mwnode.client.link import BACKOFF_FIRST_SECONDS, BACKOFF_MAX_SECONDS, Backoff


class _Longest(random.Random):
    """Jitter that always gives the longest wait."""

    def uniform(self, a: float, b: float) -> float:
        return b


def test_waits_grow_up_to_a_bound() -> None:
    backoff = Backoff(_Longest())
    waits = [backoff.next() for _ in range(20)]
    assert waits[:4] == [BACKOFF_FIRST_SECONDS * factor for factor in (1, 2, 4, 8)]
    assert waits[-1] == BACKOFF_MAX_SECONDS


def test_after_a_good_session_the_first_steps_are_smaller() -> None:
    backoff = Backoff(_Longest())
    for _ in range(20):
        backoff.next()
    backoff.reset()
    waits = [backoff.next() for _ in range(4)]
    assert waits == [BACKOFF_FIRST_SECONDS * factor for factor in (0.25, 0.5, 1, 2)]


def test_waits_are_jittered_downwards_only() -> None:
    backoff = Backoff(random.Random(1))
    first = [Backoff(random.Random(seed)).next() for seed in range(50)]
    assert all(BACKOFF_FIRST_SECONDS / 2 <= wait <= BACKOFF_FIRST_SECONDS for wait in first)
    assert len(set(first)) == 50
    assert backoff.next() != backoff.next()
