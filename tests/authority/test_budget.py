"""The Budget Ledger: exact amounts, claims along the ancestry, charges that move everything or nothing."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mwnode.authority import budget
from mwnode.authority.case import Refused
from mwnode.authority.state import ACCOUNTS, AccountRow
from mwnode.authority.view import Overlay
from mwnode.protocol.documents import Budget
from mwnode.protocol.errors import ErrorCode
from tests.authority.memory import MemoryView
from tests.authority.scene import MISSION, RECORD_USAGE, Scene, usage, work_id

# --- amounts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "amount, micro",
    [(0, 0), (1, 1_000_000), (0.1, 100_000), (0.000001, 1), (12.345678, 12_345_678), (1e9, 10**15)],
)
def test_money_is_counted_exactly(amount: float, micro: int) -> None:
    assert budget.micro_units(amount) == micro


@pytest.mark.parametrize("amount", [0.0000001, 1.0000005, 1_000_000_001, 1e300])
def test_money_that_has_no_micro_units_is_refused(amount: float) -> None:
    with pytest.raises(ValueError, match="financialLimit"):
        budget.micro_units(amount)


@given(st.integers(0, 10**15))
def test_every_micro_unit_survives_the_wire(micro: int) -> None:
    wire = budget.wire_budget((micro, None, None, None, None, None), "EUR")
    assert budget.micro_units(wire["financialLimit"]) == micro
    assert Fraction(micro, 1_000_000) == Fraction(str(wire["financialLimit"]))


def test_wire_budgets_leave_out_what_is_not_limited() -> None:
    assert budget.wire_budget((None, 1, None, 0, None, None), "EUR") == {
        "modelTokenLimit": 1,
        "computeSecondsLimit": 0,
    }
    assert budget.wire_budget((1, None, None, None, None, None), "EUR") == {
        "currency": "EUR",
        "financialLimit": 0.000001,
    }


# --- allocation -------------------------------------------------------------------------------------------------------


@pytest.mark.req("R-12-19")
def test_every_mission_and_work_item_has_a_budget() -> None:
    scene = Scene()
    item = scene.authorize("item")
    assert scene.account(MISSION).parent_id is None
    assert scene.account(item).parent_id == MISSION
    payload = scene.mission_payload("urn:example:mission:2", "urn:example:group:2")
    del payload["budget"]
    refusal = scene.refused(scene.owner, "mission.create", payload, groupId="urn:example:group:2")
    assert refusal.code is ErrorCode.INVALID_COMMAND


@pytest.mark.req("R-12-21", "R-14-05", "R-19-30")
@pytest.mark.parametrize("member", budget.NAMES)
def test_allocations_stay_within_the_mission_in_every_dimension(member: str) -> None:
    money = {"currency": "EUR"} if member == "financialLimit" else {}
    scene = Scene(budget={member: 10, **money})

    def payload(name: str, amount: float) -> dict[str, Any]:
        return {"workItemId": work_id(name), "contract": scene.contract(budget={member: amount, **money})}

    scene.ok(scene.coordinator, "work.authorize", payload("a", 6))
    step = 0.000001 if money else 1
    refusal = scene.refused(scene.coordinator, "work.authorize", payload("b", 4 + step))
    assert refusal.code is ErrorCode.BUDGET_EXCEEDED
    scene.ok(scene.coordinator, "work.authorize", payload("b", 4))
    assert scene.refused(scene.coordinator, "work.authorize", payload("c", step)).code is ErrorCode.BUDGET_EXCEEDED
    scene.ok(scene.coordinator, "work.authorize", payload("d", 0))


def test_what_is_spent_is_not_given_back() -> None:
    scene = Scene(budget={"toolCallLimit": 10})
    anna = scene.workers["anna"]
    item = scene.bring(scene.authorize("item", budget={"toolCallLimit": 8}), "active", anna)
    scene.ok(anna, RECORD_USAGE, {**scene.three(item), "usageDelta": usage(toolCalls=5)})
    account = scene.account(MISSION)
    assert (account.used[2], account.reserved[2]) == (5, 3)
    scene.cancel(item)
    account = scene.account(MISSION)
    assert (account.used[2], account.reserved[2]) == (5, 0)
    too_much = {"workItemId": work_id("x"), "contract": scene.contract(budget={"toolCallLimit": 6})}
    assert scene.refused(scene.coordinator, "work.authorize", too_much).code is ErrorCode.BUDGET_EXCEEDED
    scene.authorize("y", budget={"toolCallLimit": 5})


def test_an_item_without_a_limit_is_bound_by_its_ancestry() -> None:
    scene = Scene(budget={"toolCallLimit": 10})
    anna = scene.workers["anna"]
    root = scene.authorize("root", budget={"wallClockSecondsLimit": 5})
    item = scene.authorize("item", budget={"toolCallLimit": 8}, payload={"parentWorkItemId": root})
    # The claim of the grandchild passes through the unlimited parent and is held by the Mission.
    assert scene.account(root).reserved[2] == scene.account(MISSION).reserved[2] == 8
    scene.bring(item, "active", anna)
    scene.ok(anna, RECORD_USAGE, {**scene.three(item), "usageDelta": usage(toolCalls=3)})
    assert scene.account(root).reserved[2] == scene.account(MISSION).reserved[2] == 5
    assert [scene.account(name).used[2] for name in (item, root, MISSION)] == [3, 3, 3]
    scene.cancel(item)
    assert scene.account(root).reserved[2] == scene.account(MISSION).reserved[2] == 0
    assert budget.effective_limits(scene.view, item) == (None, None, 8, None, 5, None)
    assert budget.effective_remainder(scene.view, root) == (None, None, 7, None, 5, None)


def test_a_revision_raises_or_lowers_a_work_items_budget() -> None:
    scene = Scene(budget={"toolCallLimit": 10})
    anna = scene.workers["anna"]
    item = scene.authorize("item", budget={"toolCallLimit": 4})
    for limit, code in ((11, "BUDGET_EXCEEDED"), (10, "accepted")):
        contract = {**scene.contract(budget={"toolCallLimit": limit}), "contractVersion": 2}
        payload = scene.offer_payload(item, anna, contract=contract)
        assert scene.code(scene.coordinator, "work.offer", payload) == code
    assert scene.account(MISSION).reserved[2] == 10
    contract = {**scene.contract(budget={"toolCallLimit": 2}), "contractVersion": 3}
    scene.offer(item, anna, contract=contract)
    assert scene.account(MISSION).reserved[2] == 2
    unlimited = {**scene.contract(budget={"modelTokenLimit": 2}), "contractVersion": 4}
    scene.offer(item, anna, contract=unlimited)
    assert scene.account(MISSION).reserved[2] == 0


@pytest.mark.req("R-12-21", "R-12-27")
def test_one_ancestry_counts_one_currency() -> None:
    scene = Scene(budget={"financialLimit": 10, "currency": "EUR"})
    assert scene.account(MISSION).currency == "EUR"
    euros = scene.authorize("euros", budget={"financialLimit": 2, "currency": "EUR"})
    assert scene.account(euros).currency == "EUR"
    assert budget.remaining_budget(scene.view, euros) == {"financialLimit": 2, "currency": "EUR"}
    contract = scene.contract(budget={"financialLimit": 2, "currency": "USD"})
    refusal = scene.refused(scene.coordinator, "work.authorize", {"workItemId": work_id("usd"), "contract": contract})
    assert (refusal.code, refusal.rule) == (ErrorCode.INVALID_COMMAND, "R-12-21")
    revised = scene.offer_payload(euros, scene.workers["anna"], contract={**contract, "contractVersion": 2})
    assert scene.refused(scene.coordinator, "work.offer", revised).code is ErrorCode.INVALID_COMMAND
    # An item that has no money of its own says nothing about its currency.
    plain = scene.authorize("plain", budget={"toolCallLimit": 1})
    assert scene.account(plain).currency is None
    assert budget.currency_of(scene.view, plain) == "EUR"


@pytest.mark.req("R-12-21", "R-14-05")
def test_what_an_open_item_holds_is_handed_on_and_what_a_closed_one_held_is_asked_for_again() -> None:
    scene = Scene(budget={"toolCallLimit": 10})
    whole = scene.authorize("whole", budget={"toolCallLimit": 10})
    under = {"parentWorkItemId": whole}
    # The Mission has nothing left to give, and is not asked: the parent holds all of it.
    scene.authorize("part", budget={"toolCallLimit": 3}, payload=under)
    assert scene.account(MISSION).reserved[2] == 10
    scene.fail(whole)
    # Its reservation is back at the Mission, but for what the part holds; another takes nearly all of it.
    assert scene.account(MISSION).reserved[2] == 3
    scene.authorize("other", budget={"toolCallLimit": 6})

    def more(name: str, calls: int) -> dict[str, Any]:
        return {**under, "workItemId": work_id(name), "contract": scene.contract(budget={"toolCallLimit": calls})}

    assert scene.refused(scene.coordinator, "work.authorize", more("two", 2)).code is ErrorCode.BUDGET_EXCEEDED
    scene.ok(scene.coordinator, "work.authorize", more("one", 1))
    assert scene.account(MISSION).reserved[2] == 10


@pytest.mark.req("R-12-27", "R-12-23")
def test_what_remains_is_the_least_along_the_ancestry_down_to_nothing() -> None:
    scene = Scene(budget={"toolCallLimit": 4})
    anna = scene.workers["anna"]
    item = scene.bring(scene.authorize("item", budget={"toolCallLimit": 3}), "active", anna)
    assert [budget.effective_remainder(scene.view, name)[2] for name in (item, MISSION)] == [3, 4]
    scene.ok(anna, RECORD_USAGE, {**scene.three(item), "usageDelta": usage(toolCalls=3)})
    assert [budget.effective_remainder(scene.view, name)[2] for name in (item, MISSION)] == [0, 1]
    assert budget.exhausted_dimension(scene.view, item) == "toolCallLimit"
    assert budget.exhausted_dimension(scene.view, MISSION) is None


@pytest.mark.req("R-12-21")
def test_a_failed_item_is_offered_again_only_while_its_budget_still_fits() -> None:
    scene = Scene(budget={"toolCallLimit": 10})
    anna = scene.workers["anna"]
    item = scene.authorize("item", budget={"toolCallLimit": 6})
    scene.fail(item)
    assert (scene.account(item).closed, scene.account(MISSION).reserved[2]) == (True, 0)
    other = scene.authorize("other", budget={"toolCallLimit": 5})
    payload = scene.offer_payload(item, anna)
    assert scene.refused(scene.coordinator, "work.offer", payload).code is ErrorCode.BUDGET_EXCEEDED
    scene.cancel(other)
    scene.ok(scene.coordinator, "work.offer", payload)
    assert (scene.account(item).closed, scene.account(MISSION).reserved[2]) == (False, 6)


# --- against a slow and simple ledger ---------------------------------------------------------------------------------


class Slow:
    """The same rules by recomputing everything: one dimension, accounts as a tree."""

    def __init__(self, limit: int | None) -> None:
        self.parent: list[int | None] = [None]
        self.limit: list[int | None] = [limit]
        self.used = [0]
        self.closed = [False]

    def chain(self, account: int | None) -> list[int]:
        found = []
        while account is not None:
            found.append(account)
            account = self.parent[account]
        return found

    def claim(self, account: int) -> int:
        limit = self.limit[account]
        if limit is None or self.closed[account]:
            return self.reserved(account)
        return max(0, limit - self.used[account])

    def reserved(self, account: int) -> int:
        return sum(self.claim(child) for child, parent in enumerate(self.parent) if parent == account)

    def fits(self, parent: int | None, claim: int) -> bool:
        for account in self.chain(parent):
            limit = self.limit[account]
            if claim <= 0 or limit is None:
                continue
            if claim > limit - self.used[account] - self.reserved(account):
                return False
            if not self.closed[account]:
                return True
        return True

    def charge_fits(self, account: int, amount: int) -> bool:
        return all(
            (limit := self.limit[above]) is None or self.used[above] + amount <= limit for above in self.chain(account)
        )


LIMIT = st.one_of(st.none(), st.integers(0, 20))


@settings(max_examples=300, deadline=None)
@given(
    LIMIT,
    st.lists(
        st.one_of(
            st.tuples(st.just("open"), st.integers(0, 9), LIMIT),
            st.tuples(st.just("charge"), st.integers(0, 9), st.integers(0, 8)),
            st.tuples(st.just("close"), st.integers(0, 9), st.just(0)),
            st.tuples(st.just("reopen"), st.integers(0, 9), st.just(0)),
            st.tuples(st.just("amend"), st.integers(0, 9), LIMIT),
        ),
        max_size=25,
    ),
)
@pytest.mark.req("R-12-21", "R-12-28", "R-12-29")
def test_the_ledger_agrees_with_a_slow_one(root: int | None, steps: list[tuple[str, int, int | None]]) -> None:
    view = Overlay(MemoryView())
    slow = Slow(root)
    view.put(ACCOUNTS, AccountRow("0", None, None, (None, None, root, None, None, None)))
    for kind, index, amount in steps:
        account = index % len(slow.parent)
        name = str(account)
        row = view.get(ACCOUNTS, name)
        assert row is not None
        stated = Budget(tool_call_limit=amount) if amount is not None else Budget(model_token_limit=0)
        if kind == "open":
            fits = slow.fits(account, amount or 0)
            assert accepted(lambda: budget._check_claim(view, name, (0, 0, amount or 0, 0, 0, 0))) == fits  # noqa: B023
            if fits:
                slow.parent.append(account)
                slow.limit.append(amount)
                slow.used.append(0)
                slow.closed.append(False)
                budget.open_item_account(view, str(len(slow.parent) - 1), stated, name)
        elif kind == "charge":
            spent = budget.usage_of((0, 0, amount or 0, 0, 0, 0))
            fits = slow.charge_fits(account, amount or 0)
            assert accepted(lambda: budget.check_charge(view, name, spent)) == fits  # noqa: B023
            if fits:
                for above in slow.chain(account):
                    slow.used[above] += amount or 0
                budget.charge(view, name, spent)
        elif kind == "close":
            slow.closed[account] = True
            budget.close_account(view, name)
        elif kind == "reopen":
            before = slow.claim(account)
            slow.closed[account] = False
            wanted = slow.claim(account) - before
            slow.closed[account] = row.closed
            if not slow.fits(slow.parent[account], wanted):
                continue
            slow.closed[account] = False
            budget.reopen_account(view, name)
        else:
            before, old = slow.claim(account), slow.limit[account]
            slow.limit[account] = amount
            wanted = slow.claim(account) - before
            slow.limit[account] = old
            lowered = amount is not None and amount < slow.used[account] + slow.reserved(account)
            if lowered or not slow.fits(slow.parent[account], wanted):
                continue
            slow.limit[account] = amount
            budget.amend_account(view, name, stated)
        for known in range(len(slow.parent)):
            now = view.get(ACCOUNTS, str(known))
            assert now is not None
            assert now.used[2] == slow.used[known] >= 0
            assert now.reserved[2] == slow.reserved(known) >= 0
            limit = slow.limit[known]
            assert limit is None or slow.used[known] <= limit


def accepted(check: Any) -> bool:
    """Whether a check of the ledger lets pass; only BUDGET_EXCEEDED may say no."""
    try:
        check()
    except Refused as refused:
        if refused.rejection.code is not ErrorCode.BUDGET_EXCEEDED:
            raise
        return False
    return True


# --- amendments and edges ---------------------------------------------------------------------------------------------

AMEND = "ext.mwnode.core.budget_amend"


@pytest.mark.req("R-12-20", "R-12-21", "R-12-23")
def test_an_amendment_covers_what_is_used_and_reserved() -> None:
    scene = Scene(budget={"toolCallLimit": 20})
    anna = scene.workers["anna"]
    item = scene.bring(scene.authorize("item", budget={"toolCallLimit": 10}), "active", anna)
    scene.ok(anna, RECORD_USAGE, {**scene.three(item), "usageDelta": usage(toolCalls=4)})
    scene.authorize("other", budget={"toolCallLimit": 5})

    def code(**limits: int) -> str:
        return scene.code(scene.owner, AMEND, {"budget": limits, "reason": "r"})

    # 4 are used, 6 and 5 are given: 15 is the least.
    assert code(toolCallLimit=14) == "BUDGET_EXCEEDED"
    assert code(toolCallLimit=15) == "accepted"
    more = {"workItemId": work_id("more"), "contract": scene.contract(budget={"toolCallLimit": 1})}
    assert scene.refused(scene.coordinator, "work.authorize", more).code is ErrorCode.BUDGET_EXCEEDED
    assert code(toolCallLimit=16) == "accepted"
    scene.ok(scene.coordinator, "work.authorize", more)
    assert code(modelTokenLimit=3) == "accepted"
    assert scene.account(MISSION).limits == (None, 3, None, None, None, None)
    assert scene.account(MISSION).reserved[2] == 12


def test_a_dimension_that_is_overdrawn_hinders_only_those_who_ask_for_it() -> None:
    scene = Scene(budget={"toolCallLimit": 10, "modelTokenLimit": 100})
    anna = scene.workers["anna"]
    scene.authorize("holder", budget={"toolCallLimit": 8})
    free = scene.bring(scene.authorize("free", budget={"modelTokenLimit": 10}), "active", anna)
    # Use is bound by limits, not by what others were given (R-12-29): 9 are used, 8 more are promised.
    scene.ok(anna, RECORD_USAGE, {**scene.three(free), "usageDelta": usage(toolCalls=9)})
    greedy = {"workItemId": work_id("greedy"), "contract": scene.contract(budget={"toolCallLimit": 1})}
    assert scene.refused(scene.coordinator, "work.authorize", greedy).code is ErrorCode.BUDGET_EXCEEDED
    scene.authorize("modest", budget={"modelTokenLimit": 10})
    scene.authorize("nothing", budget={"toolCallLimit": 0})
