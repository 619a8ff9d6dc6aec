"""Who may stay connected: bounds over all connections, and fair shares of those whose peer is not known yet. Pure.

A peer is known once it has authenticated, by a handshake, a token or a signed Command. All others together are few, no
address has more than its share of them, and where they are too many the one that has kept us waiting longest has to go:
so that peers that say nothing never keep out those that do (R-17.3-01).
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Callable, Iterable

from mwnode.gateway.budget import ADDRESS_SHARE, ARRIVAL_SECONDS, PEER_SHARE, Budget, Budgets, Others

PATIENCE_SECONDS = 1.0
"""How long a peer may be silent before it has to make room for another one."""
WAIT_MIN_SECONDS = 0.02
"""How long a peer over its budget waits at least."""
SHARE_MIN = 8
"""A share of fewer connections than this would be none."""


class Visit:
    """One connection from its first packet on; times are in seconds on one monotonic clock."""

    def __init__(self, address: str, now: float, cut: Callable[[], None], budget: Budget) -> None:
        """``cut`` ends the connection at once; ``budget`` is its address's, until the peer is known."""
        self.address = address
        self.cut = cut
        self.budget = budget
        self.principal = ""
        self.known = False
        self.websocket = False
        self.waiting_since: float | None = now
        """Since when nothing but the peer is waited for; ``None`` while it is we who are at work."""


class Doors:
    """All connections of a node."""

    def __init__(self, known_max: int, unknown_max: int) -> None:
        """``unknown_max`` WebSockets in their handshake, and as many other connections of unknown peers."""
        self._all_max = known_max + 2 * unknown_max
        self._addresses = Budgets(ADDRESS_SHARE)
        self._principals = Budgets(PEER_SHARE)
        self._others = Others()
        self._unknown_max = unknown_max
        self._visits: set[Visit] = set()
        self._unknown: set[Visit] = set()

    def __len__(self) -> int:
        return len(self._visits)

    def enter(self, address: str, now: float, cut: Callable[[], None]) -> Visit | None:
        """A connection was made; ``None`` when it cannot stay."""
        place = _place(address)
        room = len(self._visits) < self._all_max or self.expel_one(self._unknown, now)
        if not room or not self._room(place, self._unknown, 2 * self._unknown_max, now):
            return None
        visit = Visit(place, now, cut, self._addresses.of(place, now))
        self._visits.add(visit)
        self._unknown.add(visit)
        return visit

    def greet(self, visit: Visit, now: float) -> bool:
        """A connection becomes a WebSocket, whose handshake begins; false when there are too many of those."""
        greeting = {each for each in self._unknown if each.websocket}
        if not self._room(visit.address, greeting, self._unknown_max, now):
            return False
        visit.websocket = True
        visit.waiting_since = now
        return True

    def know(self, visit: Visit, principal: str, now: float) -> None:
        """The peer has authenticated: its coming was of use, and from now on it has a budget of its own."""
        if not visit.known:
            visit.budget.credit(ARRIVAL_SECONDS)
            visit.known = True
            self._unknown.discard(visit)
        if visit.principal != principal:
            visit.principal = principal
            visit.budget = self._principals.of(principal, now)

    def spent(self, visit: Visit, seconds: float, now: float) -> None:
        """A peer has cost so much of the loop's time; less than nothing was of use."""
        if seconds > 0:
            visit.budget.charge(seconds, now)
        else:
            visit.budget.credit(-seconds)
        if visit.known:
            self._others.served(visit.budget, now)

    def owed(self, visit: Visit, now: float) -> float:
        """How long a peer is to be kept waiting now, in seconds: not at all while nobody else needs the time."""
        wait = visit.budget.wait(now)
        # Waking up for each little credit would cost more than what it buys.
        return max(wait, WAIT_MIN_SECONDS) if wait and self._others.beside(visit.budget, now) else 0.0

    def leave(self, visit: Visit) -> None:
        """The connection is over. Idempotent."""
        self._visits.discard(visit)
        self._unknown.discard(visit)

    def overdue(self, now: float, seconds: float) -> list[Visit]:
        """Unknown peers that have left us waiting for a TLS handshake or a request for longer than that."""
        return [
            visit
            for visit in self._unknown
            if not visit.websocket and visit.waiting_since is not None and now - visit.waiting_since > seconds
        ]

    def expel_one(self, among: Iterable[Visit], now: float) -> bool:
        """End the connection that has kept us waiting longest; false when none has for long."""
        silent = [
            (visit.waiting_since, visit)
            for visit in among
            if visit.waiting_since is not None and now - visit.waiting_since >= PATIENCE_SECONDS
        ]
        if not silent:
            return False
        _, visit = min(silent, key=lambda each: each[0])
        self.leave(visit)
        visit.cut()
        return True

    def expel(self, now: float) -> bool:
        """Make room when the machine itself has none left."""
        return self.expel_one(self._unknown, now)

    def _room(self, address: str, those: set[Visit], limit: int, now: float) -> bool:
        """Whether one more from an address fits among those; makes room where one address crowds the others out."""
        crowds = Counter(visit.address for visit in those)
        if crowds[address] >= max(SHARE_MIN, limit // 2):
            crowd = address
        elif len(those) >= limit:
            crowd = crowds.most_common(1)[0][0]
        else:
            return True
        return self.expel_one([visit for visit in those if visit.address == crowd], now)


def _place(address: str) -> str:
    """What counts as one address: a household or a machine has a whole /64 of IPv6."""
    host = address.partition("%")[0]
    if ":" not in host:
        return host
    return str(ipaddress.ip_network((host, 64), strict=False))
