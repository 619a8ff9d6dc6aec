"""The scheduler: weighted fairness, ageing, deadlines, quotas, risk gates, preemption; bounded wait as a property."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mwnode.worker.scheduler import PATIENCE_SECONDS, Entry, Pick, Scheduler, Settings


def entry(name: str, group: str = "a", ready: float = 0.0, **members: Any) -> Entry:
    return Entry(work_item_id=name, group_id=group, ready_at=ready, **members)


def filled(*entries: Entry, **rules: Any) -> Scheduler:
    scheduler = Scheduler(Settings(**rules))
    for one in entries:
        scheduler.add(one)
    return scheduler


def serve(scheduler: Scheduler, now: float = 0.0, *, seconds: float | None = None) -> Pick | None:
    """Pick one item and run it to its end at once."""
    pick = scheduler.pick(now)
    if pick is not None:
        scheduler.release(pick.work_item_id, 60.0 if seconds is None else seconds)
    return pick


def order(scheduler: Scheduler, now: float = 0.0) -> list[str]:
    served = []
    while (pick := serve(scheduler, now)) is not None:
        served.append(pick.work_item_id)
    return served


@pytest.mark.req("R-11.1-05")
def test_free_slots_are_filled_from_all_groups_and_never_beyond() -> None:
    scheduler = filled(*(entry(f"{group}{n}", group) for group in "abc" for n in range(3)), slots=4)
    picks = [scheduler.pick(0.0) for _ in range(6)]
    assert [pick.group_id for pick in picks if pick] == ["a", "b", "c", "a"]
    assert picks[4:] == [None, None]
    assert (scheduler.running, scheduler.free_slots, scheduler.queued) == (4, 0, 5)
    scheduler.release("b0", 60.0)
    assert scheduler.pick(0.0) is not None
    assert scheduler.pick(0.0) is None


@pytest.mark.req("R-11.1-09")
@pytest.mark.parametrize("lengths", [(60.0, 60.0), (10.0, 90.0)], ids=["equal", "unequal"])
def test_saturated_groups_are_served_by_weight(lengths: tuple[float, float]) -> None:
    scheduler = Scheduler(Settings(weights={"a": 3.0, "b": 1.0}, borrow_seconds=60.0))
    served = {"a": 0.0, "b": 0.0}
    for group, length in zip("ab", lengths, strict=True):
        for number in range(4000):
            scheduler.add(entry(f"{group}{number}", group, seconds=length))
    for _ in range(1000):
        pick = scheduler.pick(0.0)
        assert pick is not None
        length = lengths["ab".index(pick.group_id)]
        scheduler.release(pick.work_item_id, length)
        served[pick.group_id] += length
    assert served["a"] / (served["a"] + served["b"]) == pytest.approx(0.75, rel=0.05)


@pytest.mark.req("R-11.1-09")
def test_what_an_estimate_got_wrong_is_paid_for() -> None:
    scheduler = Scheduler(Settings(borrow_seconds=0.0))
    for group in "ab":
        for number in range(3000):
            scheduler.add(entry(f"{group}{number}", group, seconds=60.0))
    served = {"a": 0.0, "b": 0.0}
    for _ in range(1500):
        pick = scheduler.pick(0.0)
        assert pick is not None
        real = 240.0 if pick.group_id == "a" else 60.0  # a says 60 seconds and takes four times as long
        scheduler.release(pick.work_item_id, real)
        served[pick.group_id] += real
    assert served["a"] / (served["a"] + served["b"]) == pytest.approx(0.5, rel=0.05)


@pytest.mark.req("R-11.1-09", "R-11.1-12")
def test_one_flooding_group_among_a_hundred_keeps_to_its_share() -> None:
    scheduler = Scheduler(Settings(borrow_seconds=300.0))
    for number in range(5000):
        scheduler.add(entry(f"flood{number}", "flood", urgency="critical"))
    groups = [f"g{number}" for number in range(99)]
    for group in groups:
        for number in range(20):
            scheduler.add(entry(f"{group}-{number}", group, urgency="routine"))
    served: dict[str, int] = {}
    waited: dict[str, int] = {}
    for turn in range(1500):
        pick = serve(scheduler, turn * 60.0)
        assert pick is not None
        served[pick.group_id] = served.get(pick.group_id, 0) + 1
        waited.setdefault(pick.group_id, turn)
    share = [served[group] for group in groups]
    assert max(share) - min(share) <= 1
    # The lead that the flood may borrow is 300 seconds, five of its items.
    assert served["flood"] <= min(share) + 6
    assert max(waited.values()) <= 100 + 5


@pytest.mark.req("R-11.1-09", "R-11.1-10", "R-11.1-12")
def test_among_a_hundred_groups_shares_are_those_of_the_weights_and_waits_within_the_bound() -> None:
    groups = [f"g{number}" for number in range(99)]
    weights = {group: (1.0, 2.0, 4.0)[number % 3] for number, group in enumerate(groups)}
    scheduler = Scheduler(Settings(weights=weights, borrow_seconds=300.0))
    flood = ["flood", *groups]
    for number in range(300):
        scheduler.add(entry(f"flood{number}", "flood", urgency="critical"))
    served = dict.fromkeys(flood, 0.0)
    others: dict[str, float] = {}
    bound: dict[str, float] = {}
    waiting = 0.0

    def arrive(group: str, turn: int) -> None:
        scheduler.add(entry(f"{group}-{turn}", group, ready=waiting, urgency="routine"))
        bound[group], others[group] = scheduler.wait_bound(group), waiting

    for group in groups:
        arrive(group, -1)
    for turn in range(9_000):
        pick = scheduler.pick(waiting)
        assert pick is not None
        if pick.group_id != "flood":
            assert waiting - others[pick.group_id] <= bound[pick.group_id]
            arrive(pick.group_id, turn)
        waiting += 60.0
        served[pick.group_id] += 60.0
        scheduler.release(pick.work_item_id, 60.0)
    whole = sum(served.values())
    all_weights = sum(weights.values()) + 1.0
    for group in groups:
        assert served[group] / whole == pytest.approx(weights[group] / all_weights, rel=0.05)
    # Whoever floods may go ahead of its turn once, by what may be borrowed, and never again.
    assert served["flood"] <= whole / all_weights + 300.0 + 60.0


@pytest.mark.req("R-11.1-10", "R-11.1-12")
def test_an_endless_stream_of_pressing_work_does_not_starve_a_routine_item() -> None:
    scheduler = filled(entry("patient", urgency="routine"))
    for turn in range(200):
        now = turn * 60.0
        scheduler.add(entry(f"pressing{turn}", ready=now, urgency="critical", deadline_at=now))
        pick = serve(scheduler, now)
        if pick is not None and pick.work_item_id == "patient":
            break
    else:
        pytest.fail("the routine item never ran")
    assert turn * 60.0 <= PATIENCE_SECONDS["routine"] + 60.0


@pytest.mark.req("R-11.1-10", "R-11.1-12")
@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32))
def test_every_groups_wait_is_within_the_bound(seed: int) -> None:
    """Whatever arrives and however pressing it says it is: others get at most ``wait_bound`` seconds first."""
    chance = random.Random(seed)
    groups = [f"g{number}" for number in range(chance.randint(2, 8))]
    weights = {group: chance.choice([0.5, 1.0, 2.0, 4.0]) for group in groups}
    scheduler = Scheduler(Settings(weights=weights, borrow_seconds=chance.choice([0.0, 60.0, 600.0])))
    longest, now, made = 100.0, 0.0, 0

    def arrive(group: str) -> None:
        nonlocal made
        made += 1
        scheduler.add(
            entry(
                f"{made}",
                group,
                ready=now,
                urgency=chance.choice(["routine", "normal", "high", "critical"]),
                deadline_at=chance.choice([None, now, now + 5000]),
                seconds=chance.uniform(1.0, longest),
                priority_class=chance.choice([-1, 0, 1]),
            )
        )

    for group in groups:
        for _ in range(chance.randint(1, 30)):
            arrive(group)
    scheduler.add(entry("longest", groups[0], seconds=longest))
    for _ in range(chance.randint(0, 30)):
        pick = scheduler.pick(now)
        if pick is not None:
            scheduler.release(pick.work_item_id, scheduler_seconds(scheduler, pick))
    watched = chance.choice(groups)
    if not scheduler.queue(watched):
        arrive(watched)
    scheduler.add(entry("as long as any", watched, ready=1e9, seconds=longest))
    bound = scheduler.wait_bound(watched)
    others = 0.0
    while True:
        now += chance.uniform(0.0, 100.0)
        for _ in range(chance.randint(0, 3)):
            arrive(chance.choice([group for group in groups if group != watched]))
        cost = {one: estimate(scheduler, one) for one in heads(scheduler, groups)}
        pick = scheduler.pick(now)
        assert pick is not None
        if pick.group_id == watched:
            break
        seconds = cost[pick.work_item_id]
        scheduler.release(pick.work_item_id, seconds)
        others += seconds
        assert others <= bound


def heads(scheduler: Scheduler, groups: list[str]) -> list[str]:
    return [queue[0] for group in groups if (queue := scheduler.queue(group))]


def estimate(scheduler: Scheduler, work_item_id: str) -> float:
    found = scheduler.entry(work_item_id)
    assert found is not None
    return found.seconds


def scheduler_seconds(scheduler: Scheduler, pick: Pick) -> float:
    return estimate(scheduler, pick.work_item_id)


FACTORS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "urgency": ({}, {"urgency": "high"}),
    "deadline": ({}, {"deadline_at": 3700.0}),
    "organization priority class": ({}, {"priority_class": 1}),
    "ageing": ({"ready": 100.0}, {"ready": 0.0}),
}


@pytest.mark.req("R-11.1-11")
@pytest.mark.parametrize("factor", FACTORS.values(), ids=FACTORS.keys())
def test_each_factor_alone_changes_the_order(factor: tuple[dict[str, Any], dict[str, Any]]) -> None:
    plain, favoured = factor
    assert order(filled(entry("first"), entry("second"))) == ["first", "second"]
    assert order(filled(entry("first", **plain), entry("second", **favoured))) == ["second", "first"]


@pytest.mark.req("R-11.1-11")
def test_a_quota_holds_back_a_group_until_a_slot_of_its_own_is_free() -> None:
    scheduler = filled(*(entry(f"a{n}") for n in range(3)), entry("b0", "b"), slots=4, quotas={"a": 1})
    picked = [pick.work_item_id for _ in range(4) if (pick := scheduler.pick(0.0))]
    assert picked == ["a0", "b0"]
    scheduler.release("a0", 60.0)
    pick = scheduler.pick(0.0)
    assert pick is not None
    assert pick.work_item_id == "a1"


@pytest.mark.req("R-11.1-11")
def test_a_closed_risk_gate_parks_items_until_it_opens() -> None:
    scheduler = filled(entry("risky", risk="high_risk"), entry("plain"), entry("risky2", risk="high_risk"))
    scheduler.close_risk("high_risk")
    scheduler.add(entry("risky3", risk="high_risk"))
    assert order(scheduler) == ["plain"]
    assert [scheduler.standing(name) for name in ("risky", "risky2", "risky3")] == ["parked"] * 3
    scheduler.open_risk("high_risk")
    assert order(scheduler) == ["risky", "risky2", "risky3"]


@pytest.mark.req("R-11.1-06", "R-11.1-07")
def test_urgency_of_a_mission_cannot_pin_the_order_between_groups() -> None:
    pressing = [entry(f"a{n}", "a", urgency="critical", deadline_at=0.0) for n in range(100)]
    quiet = [entry(f"b{n}", "b", urgency="routine") for n in range(100)]
    scheduler = filled(*pressing, *quiet, borrow_seconds=300.0)
    served = [pick.group_id for turn in range(100) if (pick := serve(scheduler, turn * 60.0))]
    assert served[0] == "a"
    assert abs(served.count("a") - served.count("b")) <= 6


@pytest.mark.req("R-11.3-23")
def test_a_change_of_priority_counts_from_the_very_next_pick() -> None:
    scheduler = filled(entry("first"), entry("second"), entry("third"))
    scheduler.add(entry("third", urgency="critical"))
    assert scheduler.queue("a") == ["third", "first", "second"]
    assert order(scheduler) == ["third", "first", "second"]


def test_what_was_removed_or_changed_never_runs_twice() -> None:
    scheduler = filled(entry("first"), entry("second"))
    scheduler.remove("first")
    scheduler.add(entry("second", urgency="high"))
    scheduler.add(entry("first", ready=5.0))
    assert order(scheduler) == ["second", "first"]
    assert (scheduler.queued, scheduler.running) == (0, 0)


@pytest.mark.req("R-11.3-24", "R-11.3-25")
def test_preemption_asks_only_where_it_is_safe_and_serves_fairness() -> None:
    scheduler = filled(entry("long", "a", seconds=10_000.0), slots=1, preempt_margin_seconds=100.0)
    assert scheduler.pick(0.0) is not None
    scheduler.add(entry("other", "b", ready=0.0, urgency="critical"))
    assert scheduler.preemption(10.0) is None, "the candidate is not overdue"
    assert scheduler.preemption(100.0) is None, "there is no safe checkpoint"
    scheduler.checkpointed("long")
    assert scheduler.preemption(100.0) == ("long", "other")
    assert scheduler.standing("long") == "preempting"
    assert scheduler.preemption(100.0) is None, "one request at a time"
    assert scheduler.pick(100.0) is None, "the slot is not free before the victim gave it up"
    scheduler.release("long", 100.0)
    pick = scheduler.pick(100.0)
    assert pick is not None
    assert pick.work_item_id == "other"


@pytest.mark.req("R-11.1-08", "R-11.3-24")
def test_a_higher_priority_class_makes_room_at_a_safe_point_and_pays_for_it() -> None:
    scheduler = filled(entry("long", "a", seconds=60.0))
    assert serve_nothing_else(scheduler) == "long"
    scheduler.add(entry("pressing", "b", urgency="critical", priority_class=1))
    assert scheduler.preemption(10.0) is None, "it is not overdue"
    assert scheduler.preemption(20.0) is None, "there is no safe point yet"
    scheduler.checkpointed("long")
    assert scheduler.preemption(20.0) == ("long", "pressing")
    scheduler.release("long", 20.0)
    scheduler.add(entry("long", "a", seconds=60.0))
    pick = scheduler.pick(20.0)
    assert pick is not None
    assert pick.work_item_id == "pressing"
    # Of the same class nobody is interrupted so early.
    scheduler.checkpointed("pressing")
    scheduler.add(entry("other", "c", urgency="critical", priority_class=1))
    assert scheduler.preemption(100.0) is None


def serve_nothing_else(scheduler: Scheduler) -> str | None:
    pick = scheduler.pick(0.0)
    return None if pick is None else pick.work_item_id


def test_preemption_leaves_alone_what_may_not_be_stopped_or_is_not_ahead() -> None:
    for victim in (
        entry("long", "a", seconds=10_000.0, preemptible=False),
        entry("long", "a", seconds=50.0),
        entry("long", "b", seconds=10_000.0),
    ):
        scheduler = filled(victim, slots=1, preempt_margin_seconds=100.0)
        scheduler.pick(0.0)
        scheduler.checkpointed("long")
        scheduler.add(entry("other", "b", urgency="critical"))
        assert scheduler.preemption(100.0) is None
    scheduler = filled(entry("long", "a", seconds=10_000.0), slots=1, preempt_margin_seconds=100.0)
    scheduler.pick(0.0)
    scheduler.checkpointed("long")
    scheduler.add(entry("other", "b", urgency="critical"))
    assert scheduler.preemption(100.0) is not None
    scheduler.keep("long")
    assert scheduler.standing("long") == "running"


@pytest.mark.req("R-13.3-15")
def test_the_scheduler_is_given_numbers_and_identifiers_only() -> None:
    members = set(Entry.__struct_fields__)
    assert members == {
        "work_item_id",
        "group_id",
        "ready_at",
        "urgency",
        "deadline_at",
        "risk",
        "seconds",
        "priority_class",
        "preemptible",
    }
    assert set(Pick.__struct_fields__) == {"work_item_id", "group_id", "rule", "due_in", "ahead_by"}


def test_every_pick_says_why() -> None:
    scheduler = filled(entry("a0", "a"), entry("a1", "a"), entry("b0", "b", urgency="critical"), borrow_seconds=300.0)
    first = serve(scheduler, 0.0)
    assert first is not None
    assert (first.rule, first.due_in) == ("fair share", PATIENCE_SECONDS["normal"])
    second = serve(scheduler, 61.0)
    assert second is not None
    assert (second.work_item_id, second.due_in) == ("b0", -1.0)


def test_a_worker_without_slots_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one slot"):
        Scheduler(Settings(slots=0))
