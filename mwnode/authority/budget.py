"""The Budget Ledger: six dimensions, integers only, charged along the whole ancestry or not at all.

Every Mission and every WorkItem has an account (R-12-19). The parent of a WorkItem's account is its parent WorkItem's,
else its Mission's; the parent of a child Mission's account is the WorkItem it was made from. Money is counted in
micro-units of the currency, never in binary floating point (reading 8).

``used`` counts an account's own use and everybody's below it. ``reserved`` is the part of what open children were given
that they have not spent. A dimension without limit is bound by the ancestry only: what passes through it is charged and
reserved at the next account above that has a limit (decision D21).
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from msgspec import UNSET, structs

from mwnode.authority.case import Case, refuse
from mwnode.authority.state import ACCOUNTS, AccountRow
from mwnode.authority.view import Overlay, View
from mwnode.protocol.commands import Usage
from mwnode.protocol.documents import Budget, JsonObject
from mwnode.protocol.errors import ErrorCode
from mwnode.protocol.scalars import SAFE_INTEGER_MAX

Amounts = tuple[int, int, int, int, int, int]
Limits = tuple[int | None, ...]

MICRO = 1_000_000
MONEY_MAX = 1_000_000_000
"""The largest ``financialLimit``: below it every micro-unit has its own binary64 spelling."""
LIMITS = (
    "financial_limit",
    "model_token_limit",
    "tool_call_limit",
    "compute_seconds_limit",
    "wall_clock_seconds_limit",
    "external_side_effect_limit",
)
"""The dimensions as members of ``Budget``, in the order of ``Usage``."""
NAMES = (
    "financialLimit",
    "modelTokenLimit",
    "toolCallLimit",
    "computeSecondsLimit",
    "wallClockSecondsLimit",
    "externalSideEffectLimit",
)
ZERO: Amounts = (0, 0, 0, 0, 0, 0)
_DIMENSIONS = range(6)


# --- documents --------------------------------------------------------------------------------------------------------


def micro_units(amount: float) -> int:
    """Money as an integer of micro-units, exactly. Raises ValueError beyond six decimals or above ``MONEY_MAX``."""
    exact = Decimal(repr(amount)) * MICRO
    if exact != exact.to_integral_value():
        raise ValueError("financialLimit has more than six decimals")
    if exact > MONEY_MAX * MICRO:
        raise ValueError(f"financialLimit is larger than {MONEY_MAX}")
    return int(exact)


def limits_of(budget: Budget) -> Limits:
    """The six limits, ``None`` where the budget states none. Raises ValueError as ``micro_units``."""
    money = None if budget.financial_limit is UNSET else micro_units(budget.financial_limit)
    counts = (getattr(budget, name) for name in LIMITS[1:])
    return (money, *(None if count is UNSET else count for count in counts))


def amounts_of(usage: Usage) -> Amounts:
    """A Usage as a tuple."""
    return (
        usage.financial_microunits,
        usage.model_tokens,
        usage.tool_calls,
        usage.compute_seconds,
        usage.wall_clock_seconds,
        usage.external_actions,
    )


def usage_of(amounts: tuple[int, ...]) -> Usage:
    """A tuple as a Usage."""
    return Usage(**dict(zip(Usage.__struct_fields__, amounts, strict=True)))


def wire_budget(limits: Limits, currency: str | None) -> JsonObject:
    """Limits under the names of ``Budget``: dimensions without limit are left out, the currency stands with money
    only (decisions D23, F15)."""
    wire: JsonObject = {}
    if limits[0] is not None:
        whole, rest = divmod(limits[0], MICRO)
        wire["financialLimit"] = float(Decimal(limits[0]) / MICRO) if rest else whole
        if currency is not None:
            wire["currency"] = currency
    wire.update((name, limit) for name, limit in zip(NAMES[1:], limits[1:], strict=True) if limit is not None)
    return wire


def _currency(budget: Budget) -> str | None:
    return None if budget.currency is UNSET else budget.currency


# --- reading the ledger -----------------------------------------------------------------------------------------------


def _account(view: View, account_id: str) -> AccountRow:
    account = view.get(ACCOUNTS, account_id)
    assert account is not None, "Missions and WorkItems have their accounts from their first Event on"
    return account


def ancestry(view: View, account_id: str | None) -> Iterator[AccountRow]:
    """The account and everything above it, nearest first."""
    while account_id is not None:
        account = _account(view, account_id)
        yield account
        account_id = account.parent_id


def effective_limits(view: View, account_id: str | None) -> Limits:
    """Per dimension the smallest limit along the ancestry, ``None`` where nobody limits it."""
    found: list[int | None] = [None] * 6
    for account in ancestry(view, account_id):
        for d, limit in enumerate(account.limits):
            known = found[d]
            if limit is not None and (known is None or limit < known):
                found[d] = limit
    return tuple(found)


def effective_remainder(view: View, account_id: str) -> Limits:
    """Per dimension the least that any account of the ancestry has left (decision F36)."""
    found: list[int | None] = [None] * 6
    for account in ancestry(view, account_id):
        for d, limit in enumerate(account.limits):
            if limit is not None:
                left = max(0, limit - account.used[d])
                known = found[d]
                found[d] = left if known is None else min(known, left)
    return tuple(found)


def currency_of(view: View, account_id: str) -> str | None:
    """The currency in which the ancestry counts money, if it limits money."""
    return next((account.currency for account in ancestry(view, account_id) if account.currency is not None), None)


def remaining_budget(view: View, account_id: str) -> JsonObject:
    """What is left along the ancestry, in wire form (R-12-27)."""
    return wire_budget(effective_remainder(view, account_id), currency_of(view, account_id))


def exhausted_dimension(view: View, account_id: str) -> str | None:
    """The first dimension in which an account of the ancestry has spent all of a limit above 0, if there is one: new
    execution waits then (R-12-23, decisions G9 and F25)."""
    for account in ancestry(view, account_id):
        for d, limit in enumerate(account.limits):
            if limit and account.used[d] >= limit:
                return NAMES[d]
    return None


# --- checks -----------------------------------------------------------------------------------------------------------


def check_amounts(case: Case, budget: Budget, parent_id: str | None) -> Limits:
    """The limits, exactly; INVALID_COMMAND for an amount finer than micro-units or a currency unlike the ancestry's."""
    try:
        limits = limits_of(budget)
    except ValueError as fault:
        refuse(ErrorCode.INVALID_COMMAND, f"{fault}; state it in at most six decimals", "R-7.1-02")
    currency = _currency(budget)
    if parent_id is not None and currency is not None:
        above = currency_of(case.view, parent_id)
        if above is not None and above != currency:
            refuse(ErrorCode.INVALID_COMMAND, f"the budget counts {currency}, its ancestry {above}", "R-12-21")
    return limits


def check_allocation(case: Case, parent_account_id: str | None, budget: Budget) -> None:
    """A new account under ``parent_account_id`` must fit there beside what is used and what other open children were
    given: BUDGET_EXCEEDED (R-12-21, R-14-05). A faulty amount or another currency: INVALID_COMMAND."""
    limits = check_amounts(case, budget, parent_account_id)
    _check_claim(case.view, parent_account_id, tuple(limit or 0 for limit in limits))


def _check_claim(view: View, parent_id: str | None, claim: tuple[int, ...]) -> None:
    """Refuse unless every account above can hand out ``claim`` more."""
    open_claim = list(claim)
    for account in ancestry(view, parent_id):
        for d in _DIMENSIONS:
            limit = account.limits[d]
            if open_claim[d] <= 0 or limit is None:
                continue
            free = limit - account.used[d] - account.reserved[d]
            if open_claim[d] > free:
                refuse(
                    ErrorCode.BUDGET_EXCEEDED,
                    f"{NAMES[d]}: {max(0, free)} of {limit} is left to give, {open_claim[d]} asked for",
                    "R-12-21",
                    details={"dimension": NAMES[d], "account": account.account_id, "free": max(0, free)},
                )
            if not account.closed:
                open_claim[d] = 0


def check_amendment(case: Case, account_id: str, budget: Budget) -> None:
    """New limits for an account: never below what is used or given to open children, and within the ancestry
    (decision A35): BUDGET_EXCEEDED."""
    account = _account(case.view, account_id)
    limits = check_amounts(case, budget, account.parent_id)
    for d, limit in enumerate(limits):
        if limit is not None and limit < account.used[d] + account.reserved[d]:
            refuse(
                ErrorCode.BUDGET_EXCEEDED,
                f"{NAMES[d]}: {account.used[d] + account.reserved[d]} is used or reserved already, {limit} is less",
                "R-12-21",
                details={"dimension": NAMES[d]},
            )
    before, after = _claim(account), _claim(structs.replace(account, limits=limits))
    _check_claim(case.view, account.parent_id, tuple(after[d] - before[d] for d in _DIMENSIONS))


def check_reopening(case: Case, account_id: str) -> None:
    """A closed account that work goes on in again must fit under its ancestry once more: BUDGET_EXCEEDED."""
    account = _account(case.view, account_id)
    before, after = _claim(account), _claim(structs.replace(account, closed=False))
    _check_claim(case.view, account.parent_id, tuple(after[d] - before[d] for d in _DIMENSIONS))


def check_charge(view: View, account_id: str, usage: Usage) -> None:
    """A charge must fit every limit of the ancestry; one overflow refuses all of it (R-12-28, R-12-29)."""
    delta = amounts_of(usage)
    for account in ancestry(view, account_id):
        for d in _DIMENSIONS:
            limit = account.limits[d] if account.limits[d] is not None else SAFE_INTEGER_MAX
            assert limit is not None
            if delta[d] and account.used[d] + delta[d] > limit:
                refuse(
                    ErrorCode.BUDGET_EXCEEDED,
                    f"{NAMES[d]}: {max(0, limit - account.used[d])} of {limit} is left, {delta[d]} was used",
                    "R-12-29",
                    details={"dimension": NAMES[d], "account": account.account_id},
                )


def check_not_exhausted(view: View, account_id: str) -> None:
    """Refuse new execution while a limit of the ancestry is spent (R-12-23): BUDGET_EXCEEDED."""
    spent = exhausted_dimension(view, account_id)
    if spent is not None:
        refuse(
            ErrorCode.BUDGET_EXCEEDED,
            f"{spent} is spent; the MissionOwner can amend the budget, or the contract can be revised",
            "R-12-23",
            details={"dimension": spent},
        )


def check_within(case: Case, account_id: str, budget: Budget) -> None:
    """A budget that is only proposed: no limit above the effective one, whatever is free now: BUDGET_EXCEEDED."""
    limits = check_amounts(case, budget, account_id)
    for d, bound in enumerate(effective_limits(case.view, account_id)):
        limit = limits[d]
        if limit is not None and bound is not None and limit > bound:
            refuse(
                ErrorCode.BUDGET_EXCEEDED,
                f"{NAMES[d]}: {limit} is more than the {bound} that the Mission has",
                "R-12-21",
                details={"dimension": NAMES[d]},
            )


# --- changing the ledger (evolvers only) ------------------------------------------------------------------------------


def _claim(account: AccountRow) -> tuple[int, ...]:
    """What the account holds of its parent's capacity and has not spent."""
    return tuple(
        account.reserved[d] if limit is None or account.closed else max(0, limit - account.used[d])
        for d, limit in enumerate(account.limits)
    )


def _shift(view: Overlay, account_id: str | None, delta: tuple[int, ...]) -> None:
    """Carry a changed claim upwards; an open account with a limit absorbs it."""
    while account_id is not None and any(delta):
        account = _account(view, account_id)
        before = _claim(account)
        account = structs.replace(account, reserved=tuple(account.reserved[d] + delta[d] for d in _DIMENSIONS))
        view.put(ACCOUNTS, account)
        after = _claim(account)
        delta = tuple(after[d] - before[d] for d in _DIMENSIONS)
        account_id = account.parent_id


def _open(view: Overlay, account_id: str, budget: Budget, parent_id: str | None) -> None:
    limits = limits_of(budget)
    view.put(ACCOUNTS, AccountRow(account_id, parent_id, _currency(budget), limits))
    _shift(view, parent_id, tuple(limit or 0 for limit in limits))


def open_mission_account(
    view: Overlay, mission_id: str, budget: Budget, parent_work_item_id: str | None = None
) -> None:
    """The account of a new Mission; a child's lies under its parent WorkItem (R-14-05)."""
    _open(view, mission_id, budget, parent_work_item_id)


def open_item_account(view: Overlay, work_item_id: str, budget: Budget, parent_id: str) -> None:
    """The account of a new WorkItem, under its parent WorkItem or its Mission."""
    _open(view, work_item_id, budget, parent_id)


def _replace(view: Overlay, account: AccountRow, **changes: Any) -> None:
    changed = structs.replace(account, **changes)
    view.put(ACCOUNTS, changed)
    before, after = _claim(account), _claim(changed)
    _shift(view, account.parent_id, tuple(after[d] - before[d] for d in _DIMENSIONS))


def close_account(view: Overlay, account_id: str) -> None:
    """Give the unspent part of the reservation back to the ancestry; what was used stays used (decision D21)."""
    _replace(view, _account(view, account_id), closed=True)


def reopen_account(view: Overlay, account_id: str) -> None:
    """Reserve again what is unspent: a failed WorkItem is offered again."""
    _replace(view, _account(view, account_id), closed=False)


def amend_account(view: Overlay, account_id: str, budget: Budget) -> None:
    """Set new limits (``budget_amend``, a contract revision)."""
    _replace(view, _account(view, account_id), limits=limits_of(budget), currency=_currency(budget))


def charge(view: Overlay, account_id: str, usage: Usage) -> None:
    """Book a charge on the account and its whole ancestry (R-12-28, R-G-07)."""
    delta = amounts_of(usage)
    reserved_delta: tuple[int, ...] = ZERO
    for account in list(ancestry(view, account_id)):
        before = _claim(account)
        changed = structs.replace(
            account,
            used=tuple(account.used[d] + delta[d] for d in _DIMENSIONS),
            reserved=tuple(account.reserved[d] + reserved_delta[d] for d in _DIMENSIONS),
        )
        view.put(ACCOUNTS, changed)
        after = _claim(changed)
        reserved_delta = tuple(after[d] - before[d] for d in _DIMENSIONS)
