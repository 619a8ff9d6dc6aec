"""Capability Tokens in slots: isolated, handed to the executor, never told to anybody else, over with their lease."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mwnode.client import Client
from mwnode.client.fold import ANY_RESOURCE
from mwnode.protocol.documents import ResourceGrant
from mwnode.protocol.errors import ErrorCode
from mwnode.protocol.instants import parse
from mwnode.testing import Harness
from mwnode.worker.capability import NotCapable, asked_for, usable
from mwnode.worker.executor import Work
from mwnode.worker.runner import Worker
from tests.patience import PATIENCE_SECONDS
from tests.worker.desk import CHECKED, Desk, Run, desk
from tests.worker.test_executor import assignment
from tests.worker.test_runner import World, world

__all__ = ["world"]

TOOL = {"resource": "urn:example:repository", "operations": ["repository.read", "repository.write"]}
ALLOWED = {**CHECKED, "allowedResources": [TOOL]}


def running(mwnode: Harness, **contract: Any) -> tuple[Any, Desk]:
    """A WorkItem that runs without end, and whoever does it."""
    mission = mwnode.mission(permissions=[TOOL])
    work = mission.authorize(**{**ALLOWED, **contract})
    work.offer(mwnode.workers[0])
    worker = desk(mwnode, behave=lambda assignment: Run(status=None)).step()
    return work, worker


def grant(worker: Desk, seconds: int = 100) -> bool:
    """The authorization service's answer to the newest request, or to the one at the launch."""
    run_id = worker.launched[-1].run_id
    job = worker.engine.runs.of_run(run_id)
    assert job is not None
    assert job.hold is not None
    now = worker.harness.clock.now()
    claims = {"issuedAt": now.text(), "expiresAt": now.plus(seconds).text()}
    return worker.engine.capability.granted(run_id, job.hold.lease_id, claims, worker.harness.clock.monotonic())


@pytest.mark.req("R-12-01")
def test_everything_that_the_contract_allows_is_asked_for_and_nothing_else(mwnode: Harness) -> None:
    _, worker = running(mwnode)
    worker.pass_time(6)
    lease_id = worker.engine.jobs[worker.launched[0].work_item_id].hold.lease_id  # type: ignore[union-attr]
    assert msgspec.json.decode(msgspec.json.encode(worker.requests[0][1])) == {
        "workItemId": worker.launched[0].work_item_id,
        "executionLeaseId": lease_id,
        "operations": ["repository.read", "repository.write"],
        "resources": [TOOL],
    }


@pytest.mark.req("R-12-17")
def test_of_what_a_human_approved_in_part_that_part_is_asked_for() -> None:
    site, files = "urn:example:site", "urn:example:files"
    contract = msgspec.structs.replace(
        assignment().contract,
        allowed_resources=(
            ResourceGrant(resource=site, operations=("write.page", "delete.page")),
            ResourceGrant(resource=files, operations=("read",)),
        ),
    )

    def asked(*approved: ResourceGrant) -> tuple[Any, Any]:
        request = asked_for(contract, "urn:example:work", "urn:example:lease", approved)
        assert request is not None
        return request["operations"], [(one["resource"], tuple(one["operations"])) for one in request["resources"]]

    part = ResourceGrant(resource=site, operations=("write.page",))
    assert asked(part) == (["write.page"], [(site, ("write.page",))])
    anywhere = ResourceGrant(resource=ANY_RESOURCE, operations=("read", "write.page"))
    assert asked(anywhere) == (["write.page", "read"], [(site, ("write.page",)), (files, ("read",))])
    other = ResourceGrant(resource="urn:example:other", operations=("read",))
    assert asked_for(contract, "urn:example:work", "urn:example:lease", (other,)) is None


def test_work_that_is_allowed_nothing_gets_no_token(mwnode: Harness) -> None:
    _, worker = running(mwnode, allowedResources=[])
    worker.pass_time(20)
    assert worker.requests == []


def test_a_token_is_renewed_at_half_of_its_life_and_a_refusal_is_waited_out(mwnode: Harness) -> None:
    _, worker = running(mwnode)
    assert grant(worker, 100)
    worker.pass_time(49)
    assert worker.requests == []
    worker.pass_time(2)
    assert len(worker.requests) == 1
    worker.engine.capability.refused(worker.launched[0].run_id, ErrorCode.APPROVAL_REQUIRED, "no")
    worker.pass_time(28)
    assert len(worker.requests) == 1
    worker.pass_time(4)
    assert len(worker.requests) == 2
    assert worker.revoked == [], "the old one is still good"


@pytest.mark.req("R-11.5-07")
def test_offline_a_token_is_gone_when_it_is_over(mwnode: Harness) -> None:
    _, worker = running(mwnode, sideEffectRisk="reversible")
    assert grant(worker, 100)
    worker.lose_link()
    worker.pass_time(95)
    assert worker.revoked == [], "lease and token are still valid"
    worker.pass_time(6)
    assert worker.revoked == [worker.launched[0].run_id]
    assert worker.killed == [], "reversible computation itself goes on"
    assert worker.requests == [], "nobody can be asked"


@pytest.mark.req("R-11.5-07")
def test_offline_a_token_is_gone_when_the_lease_is_over(mwnode: Harness) -> None:
    _, worker = running(mwnode, sideEffectRisk="reversible")
    assert grant(worker, 3000)
    worker.lose_link()
    worker.pass_time(290, 5)
    assert worker.revoked == []
    worker.pass_time(15, 5)
    assert worker.revoked == [worker.launched[0].run_id]
    assert worker.killed == []


@pytest.mark.req("R-11.5-07")
def test_a_token_of_an_earlier_lease_is_taken_away_and_asked_for_anew(mwnode: Harness) -> None:
    _, worker = running(mwnode, sideEffectRisk="reversible")
    assert grant(worker, 3000)
    old = worker.engine.jobs[worker.launched[0].work_item_id].hold.lease_id  # type: ignore[union-attr]
    worker.lose_link()
    worker.pass_time(5)
    worker.reconnect()
    worker.pass_time(8)
    assert worker.revoked == [worker.launched[0].run_id]
    assert worker.requests[0][1]["executionLeaseId"] != old
    claims = {"issuedAt": "2030-01-01T00:00:00Z", "expiresAt": "2030-01-02T00:00:00Z"}
    late = worker.engine.capability.granted(worker.launched[0].run_id, old, claims, mwnode.clock.monotonic())
    assert not late, "an answer that comes late is not kept"


@pytest.mark.req("R-11.5-07")
def test_a_tool_asks_just_before_it_acts() -> None:
    now = parse("2030-01-01T00:00:00Z")
    held = msgspec.json.encode(
        {"token": "t", "operations": TOOL["operations"], "resources": [TOOL], "expiresAt": now.plus(10).text()}
    )
    assert usable(held, now, "repository.write", "urn:example:repository") == "t"
    assert usable(held, now.plus(9), "repository.read", None) == "t"
    for raw, at, operation, resource, told in (
        (None, now, "repository.read", None, "no valid"),
        (held, now.plus(10), "repository.read", None, "ended at"),
        (held, now, "payment.send", None, "does not cover payment.send"),
        (held, now, "repository.write", "urn:example:other", "on urn:example:other"),
    ):
        with pytest.raises(NotCapable, match=told):
            usable(raw, at, operation, resource)


# --- over sockets -----------------------------------------------------------------------------------------------------

PERMITTED = """
[[mission.permissions]]
resource = "urn:example:repository"
operations = ["repository.read", "repository.write"]
"""


@pytest.mark.req("R-11.1-15")
async def test_tokens_lie_in_their_own_slots_and_nowhere_else(world: World) -> None:
    text = (world.path / "plan.toml").read_text()
    (world.path / "plan.toml").write_text(text.replace("[[work]]", f"{PERMITTED}\n[[work]]", 1))
    seen: dict[str, tuple[str, int]] = {}
    meet = asyncio.Event()

    async def handler(work: Work) -> None:
        name = work.contract.constraints["run"]  # type: ignore[index]  # the plan gives it
        file = work.slot.capability_file
        seen[name] = (work.capability("repository.write", "urn:example:repository"), stat.S_IMODE(file.stat().st_mode))
        assert work.slot.environment({})["MWNODE_CAPABILITY"] == str(file)
        assert msgspec.json.decode(file.read_bytes())["token"] == seen[name][0]
        with pytest.raises(NotCapable):
            work.capability("payment.send")
        if len(seen) >= 2:
            meet.set()
        await meet.wait()
        (work.outputs / f"{name}.txt").write_text(name)

    who = world.harness.workers[0]
    world.coordinate()
    mission = await world.mission()
    lines: list[str] = []
    stop = asyncio.Event()
    directory = world.path / "own"
    async with await Client.connect(world.url, who.key, world.home.ca_path) as client:
        worker = Worker(
            client, handler, directory=directory, slots=2, log=lambda event, details: lines.append(f"{event} {details}")
        )
        working = asyncio.create_task(worker.run(stop))
        await world.until(lambda: mission.state == "awaiting_approval" or working.done())
        stop.set()
        await asyncio.wait_for(working, PATIENCE_SECONDS)
    tokens = {token for token, _ in seen.values()}
    assert len(seen) == len(tokens) == 3, "each run has a token of its own"
    assert {mode for _, mode in seen.values()} == {0o600}
    said = "\n".join([*lines, *(str(event) for event in mission.events())]).encode()
    kept = b"".join(path.read_bytes() for path in _files(directory))
    assert list((directory / "slots").iterdir()) == [], "no slot outlives the Worker"
    for token in tokens:
        assert token.encode() not in said
        assert token.encode() not in kept, "nothing is left of it when the run is over"


def _files(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()]
