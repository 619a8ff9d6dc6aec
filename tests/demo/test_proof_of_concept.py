"""The protocol's proof of concept (section 22): one whole run of `mwnode demo`, and what it was seen to hold."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from mwnode.protocol.identifiers import CORE_EXTENSION, OFFLINE_EXTENSION
from tests.cli.support import cli, environment

CHECKS_MIN = 60
PROFILES = {CORE_EXTENSION, OFFLINE_EXTENSION}
"""The two that are built in, and not critical for anybody who does not know them."""


class Run:
    """What one run printed, and the HOME that it left."""

    def __init__(self, home: Path, status: int, document: Mapping[str, Any]) -> None:
        self.home = home
        self.status = status
        self.document = document
        self.found = {check["name"]: check for check in document["checks"]}

    def held(self, *parts: str) -> None:
        """Every part is in the name of a check, and each such check held."""
        for part in parts:
            named = [check for name, check in self.found.items() if part in name]
            assert named, f"no check is about {part!r}"
            assert [check for check in named if not check["passed"]] == []


def play(home: Path) -> Run:
    """Play all of it once, in a HOME that stays."""
    done = subprocess.run(
        [sys.executable, "-m", "mwnode", "demo", "--home", str(home), "--json"],
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=3000,
        check=False,
    )
    assert done.stdout, done.stderr
    return Run(home, done.returncode, json.loads(done.stdout))


def every_check_holds_and_there_are_enough_of_them(run: Run) -> None:
    assert [check for check in run.document["checks"] if not check["passed"]] == []
    assert (run.status, run.document["passed"]) == (0, True)
    assert len(run.found) == len(run.document["checks"]) >= CHECKS_MIN
    assert all(check["evidence"] for check in run.document["checks"])


def two_software_missions_at_once_with_a_shared_worker_and_every_stage_a_node(run: Run) -> None:
    run.held(
        "two Missions go on at the same time",
        "one Worker owns and does WorkItems of both Missions",
        "feature: analysis, implementation, testing, review, integration and approval are nodes of the graph",
        "repair: analysis, implementation, testing, review, integration and approval are nodes of the graph",
        "the released feature does what was ordered",
        "the released repair does what was ordered",
    )


def a_queue_for_each_group_shares_by_weight_and_two_slots(run: Run) -> None:
    run.held(
        "it keeps a queue for each Group", "two Groups share one slot by their weights", "its two slots are in use"
    )


def contexts_and_credentials_are_apart_and_preemption_is_at_a_checkpoint(run: Run) -> None:
    run.held(
        "a Group answers a stranger as if it did not exist",
        "a slot holds no key and is told of none",
        "a slot holds the inputs of its own Mission and of no other",
        "makes room for critical work of another Mission, at a safe checkpoint",
        "goes on from its checkpoint",
    )


def coordinators_review_and_a_human_approves_and_may_open_everything(run: Run) -> None:
    run.held(
        "every result was reviewed by its Coordinator",
        "every Approval is a document of its own, signed by the human, and verifies",
        "feature: the Approval names the submitted revision and Artifact set, exactly",
        "the MissionOwner is told in words what stands still, and can open the Event itself",
    )


def the_seven_faults_of_the_failure_suite_were_injected(run: Run) -> None:
    run.held(
        "a Command delivered three times has one effect",
        "a Worker that was killed finds its whole queue again",
        "a replaced Coordinator's successor holds the next epoch",
        "what a Worker reported while it was offline is signed",
        "the work is given to another Worker under a higher Ownership Epoch",
        "makes room for critical work of another Mission",
        "a change request has exactly the named work, and what depends on it, done again",
    )


def one_organization_one_group_service_and_six_components(run: Run) -> None:
    run.held(
        "one Organization, one logical Group service",
        "one authority accepted every Event",
        "all six components of a deployment answer",
    )


def nothing_of_it_needs_federation_or_profiles_of_its_own(run: Run) -> None:
    settings = (run.home / "mwnode.toml").read_text(encoding="utf-8").lower()
    assert not [word for word in ("federation", "peer", "consensus", "encrypt", "profile") if word in settings]
    olivia = ("--home", run.home, "--key", run.home / "keys" / "olivia.key")
    missions = cli("mission", "list", *olivia, "--json").json["missions"]
    assert len(missions) >= 2
    for mission in missions[:2]:
        for line in cli("events", mission["missionId"], *olivia, "--json").out.splitlines():
            event = json.loads(line)
            extensions = set(event.get("extensions", {})) | set(
                event["payload"].get("mission", {}).get("extensions", {})
            )
            assert extensions <= PROFILES
            assert "encrypted" not in event["payload"]


@pytest.mark.timeout(3600)
@pytest.mark.req(
    *("R-22-11", "R-22-12", "R-22-13", "R-22-14", "R-22-15", "R-22-16", "R-22-17", "R-22-18", "R-5-01", "R-8-22")
)
def test_the_proof_of_concept(tmp_path: Path) -> None:
    """One test, so that one run serves all: it is most of what the whole suite costs."""
    run = play(tmp_path / "home")
    for claim in (
        every_check_holds_and_there_are_enough_of_them,
        two_software_missions_at_once_with_a_shared_worker_and_every_stage_a_node,
        a_queue_for_each_group_shares_by_weight_and_two_slots,
        contexts_and_credentials_are_apart_and_preemption_is_at_a_checkpoint,
        coordinators_review_and_a_human_approves_and_may_open_everything,
        the_seven_faults_of_the_failure_suite_were_injected,
        one_organization_one_group_service_and_six_components,
        nothing_of_it_needs_federation_or_profiles_of_its_own,
    ):
        claim(run)
