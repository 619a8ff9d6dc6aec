"""A run may be given up at any moment, also while its results are on their way: that ends nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

from mwnode.client.errors import Unreachable
from mwnode.protocol.documents import WorkContract
from mwnode.testing import Harness
from mwnode.worker.effects import Assignment, Exit, Launch
from mwnode.worker.executor import Stop
from mwnode.worker.hands import Hands
from mwnode.worker.slots import Slot


class Node:
    """A node that cannot be reached at first; meanwhile something happens."""

    def __init__(self, meanwhile: Any) -> None:
        self._meanwhile = meanwhile
        self._tried = False

    async def put_artifact(self, path: Path) -> dict[str, Any]:
        if not self._tried:
            self._tried = True
            self._meanwhile()
            raise Unreachable("not now")
        with open(path, "rb") as file:
            return {"contentHash": "sha256:" + "0" * 64, "sizeBytes": len(file.read()), "uri": "urn:x"}

    async def until_connected(self) -> None:
        return


class Runs:
    def __init__(self) -> None:
        self.told: list[str | None] = []

    def collected(self, run_id: str, outputs: object, error: str | None = None) -> None:
        self.told.append(error)


def hands_of(tmp_path: Path, node: Node, runs: Runs) -> Hands:
    return Hands(node, SimpleNamespace(runs=runs), SimpleNamespace(), tmp_path, lambda *_: None, lambda: None)  # type: ignore[arg-type]


def slot_of(tmp_path: Path) -> Slot:
    harness = Harness(tmp_path / "home")
    contract = msgspec.convert(harness.contract(), WorkContract)
    harness.close()
    assignment = Assignment(
        run_id="run",
        group_id="urn:x:g",
        mission_id="urn:x:m",
        work_item_id="urn:x:w",
        ownership_epoch=1,
        contract=contract,
        attempt=1,
        idempotency_key="key",
        context_package_id=None,
        checkpoint=None,
        wall_seconds_max=None,
    )
    slot = Slot(tmp_path / "slots", assignment)
    slot.outputs.mkdir(parents=True)
    (slot.outputs / "report").write_text("result")
    return slot


async def test_a_slot_that_goes_while_it_is_uploaded_is_told_and_ends_nothing(tmp_path: Path) -> None:
    slot, runs = slot_of(tmp_path), Runs()
    hands = hands_of(tmp_path, Node(lambda: shutil.rmtree(slot.path)), runs)
    hands._runs["run"] = (slot, Stop())
    await hands.collect("run")
    assert len(runs.told) == 1
    assert "No such file" in str(runs.told[0])


async def test_what_was_given_up_before_it_began_is_left_alone(tmp_path: Path) -> None:
    runs = Runs()
    hands = hands_of(tmp_path, Node(lambda: None), runs)
    await hands.collect("run")
    await hands.save_state("run", "checkpoint/state")
    assert runs.told == []


class Issuer:
    """The node's token service; something happens while it answers."""

    def __init__(self, meanwhile: Any) -> None:
        self.http = self
        self._meanwhile = meanwhile

    def post(self, path: str, question: object) -> dict[str, Any]:
        self._meanwhile()
        claims = {"allowedOperations": [], "allowedResources": [], "expiresAt": "2030-01-01T00:00:00Z"}
        return {"token": "secret", "claims": claims}


class Capabilities:
    def __init__(self) -> None:
        self.refusals: list[str] = []

    def granted(self, *_: object) -> bool:
        return True

    def refused(self, run_id: str, code: object, why: str) -> None:
        self.refusals.append(why)


def holding(tmp_path: Path, issuer: Issuer, capability: Capabilities) -> Hands:
    engine = SimpleNamespace(capability=capability, clock=SimpleNamespace(monotonic=lambda: 0.0))
    return Hands(issuer, engine, SimpleNamespace(), tmp_path, lambda *_: None, lambda: None)  # type: ignore[arg-type]


REQUEST = {"executionLeaseId": "urn:x:lease"}


async def test_a_token_may_come_before_its_slot_is_prepared(tmp_path: Path) -> None:
    slot, capability = slot_of(tmp_path), Capabilities()
    hands = holding(tmp_path, Issuer(lambda: shutil.rmtree(slot.path)), capability)
    hands._runs["run"] = (slot, Stop())
    await hands.fetch_token("run", REQUEST)
    assert b"secret" in (slot.token() or b"")
    assert slot.path.stat().st_mode & 0o777 == 0o700
    assert capability.refusals == []


async def test_a_token_for_a_run_that_was_given_up_is_kept_nowhere(tmp_path: Path) -> None:
    slot = slot_of(tmp_path)
    hands = holding(tmp_path, Issuer(lambda: hands.drop("run")), Capabilities())
    hands._runs["run"] = (slot, Stop())
    await hands.fetch_token("run", REQUEST)
    assert slot.token() is None


async def test_a_token_that_cannot_be_kept_ends_nothing(tmp_path: Path) -> None:
    slot, capability = slot_of(tmp_path), Capabilities()
    hands = holding(tmp_path, Issuer(lambda: None), capability)
    slot.capability_file.mkdir()
    hands._runs["run"] = (slot, Stop())
    await hands.fetch_token("run", REQUEST)
    (why,) = capability.refusals
    assert "cannot be kept" in why


class Ends:
    """An executor that leaves a folder where its token was."""

    async def run(self, slot: Slot, *_: object) -> Exit:
        slot.capability_file.mkdir(parents=True)
        (slot.capability_file / "junk").write_text("x")
        return Exit(0, 1.0, 0.5)


async def test_a_folder_in_place_of_the_token_ends_nothing(tmp_path: Path) -> None:
    slot, ended = slot_of(tmp_path), []
    runs = SimpleNamespace(exited=lambda run_id, told: ended.append(told.status))
    engine = SimpleNamespace(runs=runs)
    hands = Hands(Node(lambda: None), engine, Ends(), tmp_path, lambda *_: None, lambda: None)  # type: ignore[arg-type]
    for _ in range(2):
        await hands.launch(Launch(assignment=slot.assignment))
    assert ended == [0, 0]
    assert not slot.capability_file.exists()
    (tmp_path / "stale").mkdir()
    slot.capability_file.mkdir()
    await hands.clear(slot, keep=True)
    assert len(list((tmp_path / "stale").iterdir())) == 1
