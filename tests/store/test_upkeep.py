"""What policy lets go by time."""

from __future__ import annotations

from pathlib import Path

import pytest

from mwnode.store.port import AuditRow
from mwnode.store.upkeep import AUDITS_PER_STEP, forget_audits
from mwnode.testing import Harness
from tests.patience import wait_until
from tests.store.archives import archived


def with_policy(home: Path, **policy: int) -> None:
    settings = home / "mwnode.toml"
    lines = "\n".join(f"{name} = {value}" for name, value in policy.items())
    settings.write_text(settings.read_text().replace("[policy]\n", f"[policy]\n{lines}\n"))


def restarted(harness: Harness, **policy: int) -> None:
    harness.node.close()
    with_policy(harness.home, **policy)
    harness.restart()


@pytest.mark.req("R-7.4-01")
def test_archived_groups_are_trimmed_when_policy_says_so_also_after_a_restart(mwnode: Harness) -> None:
    restarted(mwnode, trim_archived_after=3600)
    first, active = archived(mwnode), mwnode.mission()
    whole = first.events()
    mwnode.advance(3599)
    assert first.events() == whole
    mwnode.advance(1)
    assert first.events() == whole[-2:]
    second = archived(mwnode)
    mwnode.node.close()
    mwnode.restart()
    mwnode.advance(3600)
    assert len(second.events()) == 2
    assert active.events()[0]["sequence"] == 1


def test_a_node_with_a_running_clock_trims_by_itself(mwnode: Harness) -> None:
    restarted(mwnode, trim_archived_after=0)
    mission = archived(mwnode)
    wait_until(lambda: len(mission.events()) <= 2)


def test_without_a_policy_nothing_is_trimmed(mwnode: Harness) -> None:
    mission = archived(mwnode)
    whole = mission.events()
    mwnode.advance(10**8)
    assert mission.events()[: len(whole)] == whole


@pytest.mark.req("R-7.4-04")
def test_protected_diagnostics_are_kept_as_long_as_policy_says(mwnode: Harness) -> None:
    restarted(mwnode, audit_retention=100)
    mwnode.node.call(lambda txn: txn.put_audit(AuditRow(mwnode.clock.now().text(), "signature", "first"))).result()
    mwnode.advance(60)
    mwnode.node.call(lambda txn: txn.put_audit(AuditRow(mwnode.clock.now().text(), "signature", "second"))).result()
    mwnode.advance(40)
    with mwnode.node.read() as view:
        assert len(view.audit(0, 10)) == 2, "kept to the last second of the period"
    mwnode.advance(1)
    with mwnode.node.read() as view:
        assert [number for number, _ in view.audit(0, 10)] == [2]
    mwnode.advance(60)
    with mwnode.node.read() as view:
        assert view.audit(0, 10) == []


def test_many_diagnostics_go_in_steps(mwnode: Harness) -> None:
    at = mwnode.clock.now()

    def fill(txn: object) -> None:
        for _ in range(AUDITS_PER_STEP + 5):
            txn.put_audit(AuditRow(at.text(), "parse", "garbage"))  # type: ignore[attr-defined]

    mwnode.node.call(fill).result()
    later = at.plus(1)
    assert mwnode.node.call(lambda txn: forget_audits(txn, later)).result() == AUDITS_PER_STEP  # type: ignore[arg-type]
    assert mwnode.node.call(lambda txn: forget_audits(txn, later)).result() == 5  # type: ignore[arg-type]
