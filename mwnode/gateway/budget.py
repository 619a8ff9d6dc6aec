"""How much of the event loop's time each peer may cost, whatever it does. Pure.

A peer that only makes work (frames that are refused, PINGs without end, handshakes that come to nothing) is heard at
the pace of its share, so that all others hardly notice it (R-17.3-01). What leads to an accepted Command is paid back:
useful work has bounds of its own. Nobody is refused for being over the share, only kept waiting, and that only while
others are there to be served.
"""

from __future__ import annotations

PEER_SHARE = 0.05
"""Share of the loop's time that one authenticated Principal may cost without any use."""
ADDRESS_SHARE = 0.05
"""The same for all peers of one address together that have not authenticated."""
BURST_SECONDS = 0.25
"""What a peer that was quiet may cost at once."""
DEBT_SECONDS = 5.0
"""What a peer can owe at most is paid back by waiting so long."""
OTHERS_SECONDS = 2.0
"""For how long after it was served a known peer counts as one that others must leave room for."""
KEPT_MAX = 4096
"""Budgets that are remembered; those in full credit need not be."""

ACCEPT_SECONDS = 0.0015
"""What a new connection costs the loop: TLS handshake, the tasks around it, its end."""
ARRIVAL_SECONDS = 0.004
"""What it is paid back when its peer authenticates: the connection, and the frames or requests up to there."""
REQUEST_SECONDS = 0.0004
"""What an HTTP request costs the loop beside the bytes."""
READ_SECONDS = 0.00003
"""What waking up for something to read costs the loop, and taking it out of its TLS."""
SEND_SECONDS = 0.00005
"""What an answer costs that a frame gets for itself."""
BYTE_SECONDS = 3e-9
"""What a byte of an answer costs."""
COMMAND_SECONDS = 0.0002
"""What a Command costs the verifier and the writer."""
ACCEPTED_SECONDS = 0.001
"""What an accepted Command is paid back: that, and what reading and answering it cost."""
REFUSED_SECONDS = 0.0005
"""What a refusal costs beside it: diagnostics are sealed and written."""


class Budget:
    """One peer's share. Times are in seconds on one monotonic clock."""

    __slots__ = ("_full_at", "_share")

    def __init__(self, share: float) -> None:
        self._share = share
        self._full_at = 0.0
        """When all of the credit would be back. It is used up while that lies more than the burst's worth ahead."""

    def charge(self, cost: float, now: float) -> None:
        """The peer has cost that much of the loop's time."""
        debt = max(self._full_at, now) + cost / self._share
        self._full_at = min(debt, now + BURST_SECONDS / self._share + DEBT_SECONDS)

    def credit(self, cost: float) -> None:
        """It was of use after all."""
        self._full_at -= cost / self._share

    def wait(self, now: float) -> float:
        """How long the peer is to be kept waiting now."""
        return max(0.0, self._full_at - now - BURST_SECONDS / self._share)

    def full(self, now: float) -> bool:
        """Whether nothing is owed."""
        return self._full_at <= now


class Others:
    """Which known peers were served of late: the last two are enough to know of one beside whoever asks."""

    def __init__(self) -> None:
        self._last: tuple[Budget, float] | None = None
        self._before: tuple[Budget, float] | None = None

    def served(self, budget: Budget, now: float) -> None:
        """A known peer is being served."""
        if self._last is not None and self._last[0] is not budget:
            self._before = self._last
        self._last = (budget, now)

    def beside(self, budget: Budget, now: float) -> bool:
        """Whether there is another known peer that would have to wait."""
        return any(
            each is not None and each[0] is not budget and now - each[1] < OTHERS_SECONDS
            for each in (self._last, self._before)
        )


class Budgets:
    """Budgets by name: a peer that comes again finds what it owes."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._kept: dict[str, Budget] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def of(self, name: str, now: float) -> Budget:
        """The budget of that name."""
        known = self._kept.get(name)
        if known is None:
            if len(self._kept) >= KEPT_MAX:
                self._forget(now)
            known = self._kept[name] = Budget(self._share)
        return known

    def _forget(self, now: float) -> None:
        self._kept = {name: budget for name, budget in self._kept.items() if not budget.full(now)}
        while len(self._kept) >= KEPT_MAX:
            # All of them owe: the oldest is let off rather than kept in memory for ever.
            del self._kept[next(iter(self._kept))]
