"""A small model of sections 10 to 12, written from the tables: what a history of Commands must lead to.

It knows WorkItems as a few numbers and words, and says for every step the code that the authority has to answer. It
shares nothing with the core but the words of the protocol.
"""

from __future__ import annotations

from dataclasses import dataclass, field

OK = "accepted"
STATE = "INVALID_STATE_TRANSITION"
FORBIDDEN = "AUTH_FORBIDDEN"
STALE = "WORK_STALE_OWNERSHIP"
LEASE = "WORK_LEASE_EXPIRED"
OFFER_OVER = "WORK_OFFER_EXPIRED"
OWNED_ALREADY = "WORK_ALREADY_OWNED"
INVALID = "INVALID_COMMAND"
BUDGET = "BUDGET_EXCEEDED"
LIMITED = "RATE_LIMITED"

ENDED = ("verified", "cancelled")
UNFINISHED = ("open", "offered", "queued", "active", "blocked", "submitted")
OWING = ("queued", "active", "blocked", "submitted")
OFFERABLE = ("open", "offered", "queued", "active", "blocked", "failed")

OFFER_SECONDS = 300
OWNERSHIP_SECONDS = 900
EXECUTION_SECONDS = 300
BLOCKED_SECONDS = 900
COORDINATOR_SECONDS = 3600
MAX_ATTEMPTS = 2
ACTIVE_LIMIT = 1
ITEM_CALLS = 6
"""Tool calls that one WorkItem may use."""


@dataclass
class ModelOffer:
    agent: str
    ends: int
    status: str = "pending"


@dataclass
class ModelItem:
    state: str = "open"
    revision: int = 1
    epoch: int = 0
    owner: str | None = None
    owned_until: int = 0
    owned: bool = False
    start_by: int = 0
    lease: int = 0
    """Number of the newest Execution Lease; 0 before the first."""
    runs_until: int = 0
    runs: bool = False
    blocked_until: int = 0
    blocks: bool = False
    offers: list[ModelOffer] = field(default_factory=list)
    attempts: int = 0
    calls: int = 0
    artifacts: int = 0

    def close_all(self) -> None:
        self.owned = self.runs = self.blocks = False


@dataclass
class Model:
    agents: tuple[str, ...]
    items: dict[str, ModelItem]
    now: int = 0
    coordinator_until: int = COORDINATOR_SECONDS
    mission: str = "active"

    # --- time ---

    def advance(self, seconds: int) -> None:
        self.now += seconds
        for item in self.items.values():
            item.owned = item.owned and item.owned_until > self.now
            item.runs = item.runs and item.runs_until > self.now
            item.blocks = item.blocks and item.blocked_until > self.now

    def live(self, item: ModelItem) -> bool:
        if item.owner is None:
            return False
        if item.state == "queued":
            return item.owned and item.start_by > self.now
        if item.state == "active":
            return item.runs
        return item.state == "blocked" and item.blocks

    # --- what several kinds share ---

    def _coordinator(self) -> str | None:
        # The lease of a Mission that ended has ended with it: its state is the reason then.
        return LEASE if self.mission == "active" and self.coordinator_until <= self.now else None

    def _hold(self, item: ModelItem, agent: str, epoch: int, states: tuple[str, ...]) -> str | None:
        if item.state in ENDED or item.epoch == 0:
            return STATE
        if epoch != item.epoch:
            return STALE
        if self.mission != "active" or item.state not in states:
            return STATE
        return None if item.owner == agent else FORBIDDEN

    def _execute(self, item: ModelItem, agent: str, epoch: int, lease: int) -> str | None:
        refused = self._hold(item, agent, epoch, ("active",))
        if refused:
            return refused
        return None if lease == item.lease and item.runs else LEASE

    def _admits(self, item: ModelItem, states: tuple[str, ...]) -> str | None:
        if item.state in ENDED or self.mission != "active" or item.state not in states:
            return STATE
        return None

    # --- the Coordinator ---

    def renew_coordinator(self) -> str:
        if self.mission != "active":
            return STATE
        if self.now + COORDINATOR_SECONDS <= self.coordinator_until:
            return INVALID
        self.coordinator_until = self.now + COORDINATOR_SECONDS
        return OK

    def offer(self, name: str, candidates: tuple[str, ...]) -> str:
        item = self.items[name]
        refused = self._coordinator() or self._admits(item, OFFERABLE)
        if refused or self.live(item) or item.attempts >= MAX_ATTEMPTS:
            return refused or STATE
        for offer in item.offers:
            if offer.status == "pending":
                if offer.ends <= self.now:
                    offer.status = "expired"
                elif item.state != "offered" or offer.agent in candidates:
                    offer.status = "withdrawn"
        item.offers += [ModelOffer(agent, self.now + OFFER_SECONDS) for agent in candidates]
        self._fence(item)
        item.state = "offered"
        item.revision += 1
        return OK

    def _fence(self, item: ModelItem) -> None:
        if item.owner is not None:
            item.epoch += 1
        item.owner = None
        item.close_all()

    def unblock(self, name: str) -> str:
        item = self.items[name]
        refused = self._coordinator() or self._admits(item, ("blocked",))
        if refused:
            return refused
        if self.live(item):
            item.state = "queued"
            item.owned_until = max(item.owned_until, item.blocked_until)
            item.start_by = item.owned_until
            item.blocks = False
        else:
            self._fence(item)
            item.state = "open"
        item.revision += 1
        return OK

    def accept_result(self, name: str) -> str:
        item = self.items[name]
        refused = self._coordinator() or self._admits(item, ("submitted",))
        if refused:
            return refused
        item.state = "verified"
        item.close_all()
        item.revision += 1
        return OK

    def fail(self, name: str) -> str:
        item = self.items[name]
        refused = self._coordinator() or self._admits(item, UNFINISHED)
        return refused or self._failed(item)

    def _failed(self, item: ModelItem) -> str:
        item.state = "failed"
        item.attempts += 1
        item.close_all()
        item.revision += 1
        return OK

    def cancel(self, name: str) -> str:
        item = self.items[name]
        refused = self._coordinator() or self._admits(item, UNFINISHED)
        if refused:
            return refused
        self._cancelled(item)
        return OK

    def _cancelled(self, item: ModelItem) -> None:
        self._fence(item)
        item.state = "cancelled"
        item.revision += 1

    def cancel_mission(self) -> str:
        if self.mission != "active":
            return STATE
        for item in self.items.values():
            if item.state in UNFINISHED:
                self._cancelled(item)
        self.mission = "cancelled"
        return OK

    # --- a Worker ---

    def accept(self, name: str, agent: str) -> str:
        item = self.items[name]
        refused = self._my_offer(item, agent)
        if refused:
            return refused
        if sum(other.owner == agent and other.state == "active" for other in self.items.values()) > ACTIVE_LIMIT:
            return LIMITED
        mine = [offer for offer in item.offers if offer.agent == agent][-1]
        for offer in item.offers:
            if offer.status == "pending" and offer is not mine:
                offer.status = "expired" if offer.ends <= self.now else "lost_race"
        mine.status = "accepted"
        item.state, item.owner, item.owned = "queued", agent, True
        item.epoch += 1
        item.owned_until = item.start_by = self.now + OWNERSHIP_SECONDS
        item.revision += 1
        return OK

    def _my_offer(self, item: ModelItem, agent: str) -> str | None:
        if item.state in ENDED or self.mission != "active":
            return STATE
        if item.state in OWING and item.owner == agent:
            return STATE
        mine = [offer for offer in item.offers if offer.agent == agent]
        if not mine:
            return STATE if item.state in ("open", "failed") else FORBIDDEN
        latest = mine[-1]
        if latest.status == "lost_race" and item.state in OWING:
            return OWNED_ALREADY
        if latest.status == "accepted":
            return STATE
        if latest.status != "pending" or latest.ends <= self.now:
            return OFFER_OVER
        return None if item.state == "offered" else STATE

    def decline(self, name: str, agent: str) -> str:
        item = self.items[name]
        refused = self._my_offer(item, agent)
        if refused:
            return refused
        [offer for offer in item.offers if offer.agent == agent][-1].status = "declined"
        item.revision += 1
        return OK

    def start(self, name: str, agent: str, epoch: int) -> str:
        item = self.items[name]
        refused = self._hold(item, agent, epoch, ("queued",))
        if refused:
            return refused
        if not self.live(item):
            return LEASE
        if sum(other.owner == agent and other.state == "active" for other in self.items.values()) >= ACTIVE_LIMIT:
            return LIMITED
        if item.calls >= ITEM_CALLS:
            return BUDGET
        item.state, item.runs = "active", True
        item.lease += 1
        item.runs_until = self.now + EXECUTION_SECONDS
        item.owned_until = max(item.owned_until, item.runs_until)
        item.revision += 1
        return OK

    def renew(self, name: str, agent: str, epoch: int, lease: int, seconds: int) -> str:
        item = self.items[name]
        refused = self._execute(item, agent, epoch, lease)
        if refused or self.now + seconds <= item.runs_until:
            return refused or INVALID
        item.runs_until = self.now + seconds
        item.owned_until = max(item.owned_until, item.runs_until)
        item.revision += 1
        return OK

    def renew_ownership(self, name: str, agent: str, epoch: int, seconds: int) -> str:
        item = self.items[name]
        refused = self._hold(item, agent, epoch, ("queued", "active", "blocked"))
        if refused:
            return refused
        if not self.live(item):
            return LEASE
        if self.now + seconds <= item.owned_until:
            return INVALID
        if item.start_by == item.owned_until:
            item.start_by = self.now + seconds
        item.owned_until = self.now + seconds
        item.revision += 1
        return OK

    def checkpoint(self, name: str, agent: str, epoch: int, lease: int) -> str:
        item = self.items[name]
        refused = self._execute(item, agent, epoch, lease)
        if refused:
            return refused
        item.state, item.runs = "queued", False
        item.owned_until = item.start_by = max(item.owned_until, self.now + OWNERSHIP_SECONDS)
        item.revision += 1
        return OK

    def block(self, name: str, agent: str, epoch: int, lease: int) -> str:
        item = self.items[name]
        refused = self._execute(item, agent, epoch, lease)
        if refused:
            return refused
        item.state, item.runs, item.blocks = "blocked", False, True
        item.blocked_until = self.now + BLOCKED_SECONDS
        item.owned_until = max(item.owned_until, item.blocked_until)
        item.revision += 1
        return OK

    def publish(self, name: str, agent: str, epoch: int, lease: int) -> str:
        item = self.items[name]
        refused = self._execute(item, agent, epoch, lease)
        if refused:
            return refused
        item.artifacts += 1
        item.revision += 1
        return OK

    def submit(self, name: str, agent: str, epoch: int, lease: int) -> str:
        item = self.items[name]
        refused = self._execute(item, agent, epoch, lease)
        if refused or not item.artifacts:
            return refused or INVALID
        item.state, item.runs = "submitted", False
        item.revision += 1
        return OK

    def give_up(self, name: str, agent: str, epoch: int, lease: int) -> str:
        item = self.items[name]
        return self._execute(item, agent, epoch, lease) or self._failed(item)

    def use(self, name: str, agent: str, epoch: int, lease: int, calls: int) -> str:
        item = self.items[name]
        refused = self._execute(item, agent, epoch, lease)
        if refused or item.calls + calls > ITEM_CALLS:
            return refused or BUDGET
        item.calls += calls
        return OK

    def session(self, agent: str) -> None:
        for item in self.items.values():
            if item.owner == agent and item.state == "active" and item.owned:
                item.state, item.runs = "queued", False
                item.owned_until = item.start_by = max(item.owned_until, self.now + OWNERSHIP_SECONDS)
                item.revision += 1
