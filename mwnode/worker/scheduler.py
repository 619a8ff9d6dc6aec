"""Which WorkItem runs next, over all Groups: weighted fairness, ageing, deadlines, quotas, risk gates. Pure.

Inside a Group the item that is *due* first goes first. An item's due time is fixed when it becomes ready: the patience
of its urgency from then on, or its deadline's lead if that comes sooner, but never before it was ready. So an item is
overtaken only by items that were ready before it was due: ageing without touching a queue (R-11.1-10).

Between Groups start-time fair queueing goes by *service*: every Group has a virtual time, which moves by seconds of
slot over its weight (R-11.1-09). A Group whose head is overdue may go ahead of its turn, up to ``borrow_seconds`` of
virtual time, and pays for it like for any other service. So urgency shapes the order and never pins it (R-11.1-06,
R-11.1-07), and the wait of a Group's head is bounded (:meth:`Scheduler.wait_bound`, R-11.1-12).

The scheduler sees identifiers and numbers, never contracts, Messages or Artifacts (R-13.3-15). Times are seconds on one
monotonic clock. Each decision costs O(log n): both heaps hold stale entries, which are dropped when they surface.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

Urgency = Literal["routine", "normal", "high", "critical"]
Standing = Literal["ready", "parked", "running", "preempting"]

PATIENCE_SECONDS: dict[str, float] = {"routine": 3600.0, "normal": 900.0, "high": 300.0, "critical": 60.0}
"""How long an item of each urgency waits before it is overdue, in seconds."""
CLASS_PATIENCE: dict[int, float] = {-1: 4.0, 0: 1.0, 1: 0.25}
"""Factor on patience by the Organization's priority class: -1 low, 0 usual, 1 high."""
PRIORITY_CLASSES: dict[str, int] = {"low": -1, "usual": 0, "high": 1}


class Entry(Struct, frozen=True, kw_only=True):
    """What the scheduler may know of a WorkItem. ``seconds`` is the expected run time, in seconds of one slot."""

    work_item_id: str
    group_id: str
    ready_at: float
    urgency: Urgency = "normal"
    deadline_at: float | None = None
    risk: str = "none"
    seconds: float = 60.0
    priority_class: int = 0
    preemptible: bool = True


class Settings(Struct, frozen=True, kw_only=True):
    """The Worker's own rules. Seconds unless said otherwise; ``weights`` and ``quotas`` (slots) by Group."""

    slots: int = 1
    weights: Mapping[str, float] = {}
    quotas: Mapping[str, int] = {}
    weight: float = 1.0
    deadline_lead_seconds: float = 3600.0
    borrow_seconds: float = 300.0
    preempt_margin_seconds: float = 600.0


class Pick(Struct, frozen=True):
    """A decision and the reason for it, in scheduling terms only."""

    work_item_id: str
    group_id: str
    rule: Literal["fair share", "overdue"]
    due_in: float
    """Seconds until the item is due; negative once it is overdue."""
    ahead_by: float
    """Virtual seconds that the Group is ahead of the least served one."""


class _Item(Struct):
    entry: Entry
    standing: Standing
    due: float
    version: int
    safe: bool = False
    """Whether a checkpoint of the present run makes it safe to stop."""


class _Group(Struct):
    group_id: str
    weight: float
    quota: int | None
    heap: list[tuple[float, int, _Item]] = []
    virtual: float = 0.0
    running: int = 0
    stamp: int = 0
    ready: int = 0


_Place = tuple[float, int, _Group, int]
"""Start or due time, a number that keeps places apart, the Group, and its stamp when the place was made."""


class Scheduler:
    """One Worker's scheduler. Not thread-safe; every method is O(log n) amortized unless it says otherwise."""

    def __init__(self, settings: Settings) -> None:
        if settings.slots < 1:
            raise ValueError("a Worker has at least one slot")
        self.settings = settings
        self._groups: dict[str, _Group] = {}
        self._items: dict[str, _Item] = {}
        self._fair: list[_Place] = []
        self._urgent: list[_Place] = []
        self._virtual = 0.0
        self._counter = 0
        self._running: dict[str, _Item] = {}
        self._moved: dict[str, _Group] = {}
        """Groups whose place in the heaps is not the present one; placed again before the next decision."""
        self._closed_risks: set[str] = set()

    # --- what changes from outside ------------------------------------------------------------------------------------

    def add(self, entry: Entry) -> None:
        """Put an item into its Group's queue, or change what is known of it; effective at once (R-11.3-23)."""
        known = self._items.get(entry.work_item_id)
        if known is not None and known.standing in ("running", "preempting"):
            known.entry = entry
            return
        if known is not None:
            self._leave(known)
        self._counter += 1
        item = _Item(entry, "ready", self._due(entry), self._counter)
        self._items[entry.work_item_id] = item
        if entry.risk in self._closed_risks:
            item.standing = "parked"
            return
        self._enter(item)

    def remove(self, work_item_id: str) -> None:
        """Forget an item that waits; a running one is released with :meth:`release`."""
        item = self._items.get(work_item_id)
        if item is not None and item.standing not in ("running", "preempting"):
            self._leave(item)
            del self._items[work_item_id]

    def release(self, work_item_id: str, seconds: float) -> None:
        """The item's slot is free again after ``seconds`` of service; charges what the estimate got wrong."""
        item = self._running.pop(work_item_id, None)
        if item is None:
            return
        del self._items[work_item_id]
        group = self._groups[item.entry.group_id]
        group.running -= 1
        group.virtual += (seconds - item.entry.seconds) / group.weight
        self._announce(group)

    def close_risk(self, risk: str) -> None:
        """Let no item of this risk class start until :meth:`open_risk`. O(items)."""
        self._closed_risks.add(risk)
        for item in self._items.values():
            if item.entry.risk == risk and item.standing == "ready":
                self._leave(item)
                item.standing = "parked"

    def open_risk(self, risk: str) -> None:
        """Let items of this risk class start again. O(items)."""
        self._closed_risks.discard(risk)
        for item in self._items.values():
            if item.entry.risk == risk and item.standing == "parked":
                item.standing = "ready"
                self._enter(item)

    def checkpointed(self, work_item_id: str, safe: bool = True) -> None:
        """The running item has, or no longer has, a checkpoint at which it may be stopped."""
        if work_item_id in self._running:
            self._running[work_item_id].safe = safe

    # --- decisions ----------------------------------------------------------------------------------------------------

    def pick(self, now: float) -> Pick | None:
        """The next item to run, which now counts as running; ``None`` when no slot is free or nothing may run."""
        if len(self._running) >= self.settings.slots:
            return None
        self._place()
        fair = self._top(self._fair)
        if fair is None:
            return None
        chosen, rule = fair[2], "fair share"
        urgent = self._top(self._urgent)
        if urgent is not None and urgent[0] <= now and urgent[2] is not chosen:
            group = urgent[2]
            if self._start(group) - self._virtual <= self.settings.borrow_seconds:
                chosen, rule = group, "overdue"
        start = self._start(chosen)
        ahead_by = start - fair[0]
        if rule == "fair share":
            self._virtual = max(self._virtual, start)
        item = self._head(chosen)
        assert item is not None, "a Group in the heap has a ready item"
        heapq.heappop(chosen.heap)
        chosen.ready -= 1
        chosen.running += 1
        chosen.virtual = start + item.entry.seconds / chosen.weight
        item.standing, item.safe = "running", False
        self._running[item.entry.work_item_id] = item
        self._announce(chosen)
        entry = item.entry
        # The literal type is lost in the tuple assignment above.
        return Pick(
            entry.work_item_id,
            entry.group_id,
            "overdue" if rule == "overdue" else "fair share",
            item.due - now,
            ahead_by,
        )

    def preemption(self, now: float) -> tuple[str, str] | None:
        """Victim and overdue candidate, when asking the victim to stop would serve fairness; O(slots).

        The victim has a safe checkpoint of its present run (R-11.3-24), and its Group is ahead by more than
        ``preempt_margin_seconds``; or the candidate's priority class is higher, and its Group may still go ahead of its
        turn. The victim counts as preempting until it is released, or refuses with :meth:`keep`.
        """
        if len(self._running) < self.settings.slots or any(i.standing == "preempting" for i in self._running.values()):
            return None
        self._place()
        fair, urgent = self._top(self._fair), self._top(self._urgent)
        if fair is None or urgent is None:
            return None
        for group in (urgent[2], fair[2]):
            candidate = self._head(group)
            victim = None if candidate is None or candidate.due > now else self._victim(group, candidate, fair[0])
            if candidate is not None and victim is not None:
                victim.standing = "preempting"
                return victim.entry.work_item_id, candidate.entry.work_item_id
        return None

    def _victim(self, group: _Group, candidate: _Item, least: float) -> _Item | None:
        """The running item of another Group that is asked first to make room, if any is."""
        may_borrow = self._start(group) - self._virtual <= self.settings.borrow_seconds
        best: tuple[float, _Item] | None = None
        for item in self._running.values():
            lead = self._groups[item.entry.group_id].virtual - least
            ahead = lead > self.settings.preempt_margin_seconds
            outranked = may_borrow and candidate.entry.priority_class > item.entry.priority_class
            eligible = item.safe and item.entry.preemptible and item.entry.group_id != group.group_id
            if eligible and (ahead or outranked) and (best is None or lead > best[0]):
                best = (lead, item)
        return None if best is None else best[1]

    def keep(self, work_item_id: str) -> None:
        """The victim did not stop; it goes on running."""
        if work_item_id in self._running:
            self._running[work_item_id].standing = "running"

    # --- what it knows ------------------------------------------------------------------------------------------------

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def free_slots(self) -> int:
        return self.settings.slots - len(self._running)

    @property
    def queued(self) -> int:
        return len(self._items) - len(self._running)

    def standing(self, work_item_id: str) -> Standing | None:
        """Where the item stands, or ``None`` for an unknown one."""
        item = self._items.get(work_item_id)
        return None if item is None else item.standing

    def entry(self, work_item_id: str) -> Entry | None:
        """What is known of an item that waits or runs."""
        item = self._items.get(work_item_id)
        return None if item is None else item.entry

    def queue(self, group_id: str) -> list[str]:
        """The Group's waiting items in the order in which they would run. O(n log n)."""
        waiting = [
            (item.due, item.version, item.entry.work_item_id)
            for item in self._items.values()
            if item.entry.group_id == group_id and item.standing in ("ready", "parked")
        ]
        return [work_item_id for _, _, work_item_id in sorted(waiting)]

    def backlog_seconds(self) -> float:
        """Expected seconds of one slot that wait or run. O(n)."""
        return sum(item.entry.seconds for item in self._items.values())

    def wait_bound(self, group_id: str) -> float:
        """Most seconds of slot that other Groups are served before this Group's head starts; O(groups).

        A Group j goes before Group g only while its virtual start is at most g's (fair share), or at most the virtual
        time plus ``borrow_seconds`` (overdue); each of its picks moves it by cost over weight. So j is served at most
        ``weight_j * (start_g - virtual + borrow) + longest`` seconds, while estimates are right and no quota binds g.
        Idle Groups count: they may get work at any moment. ``longest`` is of what is known now.
        """
        own = self._start(self._group(group_id)) - self._virtual
        longest = max((item.entry.seconds for item in self._items.values()), default=0.0)
        others = [group for group in self._groups.values() if group.group_id != group_id]
        return sum(group.weight * (own + self.settings.borrow_seconds) + longest for group in others)

    # --- inside -------------------------------------------------------------------------------------------------------

    def _due(self, entry: Entry) -> float:
        patience = PATIENCE_SECONDS[entry.urgency] * CLASS_PATIENCE.get(entry.priority_class, 1.0)
        due = entry.ready_at + patience
        if entry.deadline_at is not None:
            due = min(due, entry.deadline_at - entry.seconds - self.settings.deadline_lead_seconds)
        # Never due before it was ready: otherwise a stream of pressing items would starve the others.
        return max(due, entry.ready_at)

    def _group(self, group_id: str) -> _Group:
        group = self._groups.get(group_id)
        if group is None:
            weight = self.settings.weights.get(group_id, self.settings.weight)
            group = _Group(group_id, weight, self.settings.quotas.get(group_id), [], self._virtual)
            self._groups[group_id] = group
        return group

    def _start(self, group: _Group) -> float:
        return max(group.virtual, self._virtual)

    def _head(self, group: _Group) -> _Item | None:
        while group.heap:
            _, version, item = group.heap[0]
            if item.version == version and item.standing == "ready":
                return item
            heapq.heappop(group.heap)
        return None

    def _enter(self, item: _Item) -> None:
        group = self._group(item.entry.group_id)
        heapq.heappush(group.heap, (item.due, item.version, item))
        group.ready += 1
        if self._head(group) is item:
            self._announce(group)

    def _leave(self, item: _Item) -> None:
        if item.standing == "ready":
            group = self._groups[item.entry.group_id]
            group.ready -= 1
            self._counter += 1
            item.version = self._counter  # its place in the heap is stale from now on
            self._announce(group)

    def _announce(self, group: _Group) -> None:
        """The Group's place has changed: the places it has in the heaps are stale from now on."""
        group.stamp += 1
        self._moved[group.group_id] = group

    def _place(self) -> None:
        """Put every Group that moved into both heaps, where it stands now."""
        for group in self._moved.values():
            if group.ready and (group.quota is None or group.running < group.quota):
                head = self._head(group)
                assert head is not None, "a Group with ready items has a first one"
                self._counter += 1
                heapq.heappush(self._fair, (self._start(group), self._counter, group, group.stamp))
                heapq.heappush(self._urgent, (head.due, self._counter, group, group.stamp))
        self._moved.clear()

    def _top(self, heap: list[_Place]) -> _Place | None:
        while heap:
            place = heap[0]
            if place[3] == place[2].stamp:
                return place
            heapq.heappop(heap)
        return None
