"""What the mission commands share: finding a Mission, one's own Membership in it, and what was submitted."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mwnode.cli.compose import principal
from mwnode.cli.exits import Failure
from mwnode.cli.reach import Reach, at
from mwnode.narrative import mission_title, work_item_name
from mwnode.protocol import jcs
from mwnode.protocol.commands import EXT
from mwnode.protocol.errors import InvalidCommand, RevisionConflict
from mwnode.protocol.limits import FRAME_BYTES
from mwnode.trust.keys import SigningKey

PAGE = 1000
ARCHIVE = f"{EXT}.core.group_archive"
ARCHIVE_ATTEMPTS = 3
TERMINAL = frozenset({"approved", "cancelled", "failed"})


def missions(node: Reach) -> list[dict[str, Any]]:
    """Every Mission that the caller takes part in."""
    listed: list[dict[str, Any]] = node.get(at("missions"))["missions"]
    return listed


def find_mission(node: Reach, name: str) -> dict[str, Any]:
    """The view of the Mission that an identifier, or an unmistakable part of it or of its Group's, names."""
    if ":" in name and not any(name == entry["groupId"] for entry in missions(node)):
        view: dict[str, Any] = node.get(at("missions", name))
        return view
    matches = [entry for entry in missions(node) if name in entry["missionId"] or name in entry["groupId"]]
    if not matches:
        raise Failure(f"no Mission of yours has {name!r} in its identifier: see `mwnode mission list`")
    if len(matches) > 1:
        raise Failure(f"{name!r} is in the identifiers of {len(matches)} Missions: give more of it")
    found: dict[str, Any] = node.get(at("missions", matches[0]["missionId"]))
    return found


def names_of(node: Reach) -> dict[str, str]:
    """What people call the caller's Missions and their WorkItems, by identifier."""
    names: dict[str, str] = {}
    for listed in missions(node):
        view = node.get(at("missions", listed["missionId"]))
        names[listed["missionId"]] = mission_title(view["mission"])
        names |= {item["workItemId"]: work_item_name(item) for item in view["workItems"]}
    return names


def membership_epoch(view: dict[str, Any], key: SigningKey) -> int:
    """The caller's current Membership Epoch in a Mission's Group; Failure when it is no active Member."""
    me = principal(key)
    for membership in view["memberships"]:
        if membership["member"] == me and membership["state"] == "active":
            epoch: int = membership["membershipEpoch"]
            return epoch
    raise Failure(f"{key.principal.type} {key.principal.id} is no active Member of {view['mission']['groupId']}")


def act(node: Reach, key: SigningKey, view: dict[str, Any], kind: str, payload: dict[str, Any]) -> dict[str, Any]:
    """Send a Command about a Mission as one of its Members, for the revision that was shown; its receipt Event."""
    epoch = None if key.principal.type == "service" else membership_epoch(view, key)
    answer = node.send(
        kind,
        payload,
        group_id=view["mission"]["groupId"],
        membership_epoch=epoch,
        expected_revision=view["mission"]["revision"] if kind.startswith("mission.") else None,
    )
    receipt: dict[str, Any] = answer["events"][0]
    return receipt


def events_of(node: Reach, group_id: str, after: int = 0) -> Iterator[dict[str, Any]]:
    """The Events of a Group above a sequence, to its present head."""
    while True:
        page = node.get(at("groups", group_id, "events"), after=after, limit=PAGE)["events"]
        yield from page
        if len(page) < PAGE:
            return
        after = page[-1]["sequence"]


def archive_group(node: Reach, view: dict[str, Any]) -> list[dict[str, Any]]:
    """Archive the Group of an ended Mission under the snapshot that the node signs for it; the Events.

    A snapshot too large for a Command is uploaded and named by its hash (decision F5). When the Group moves on between
    the snapshot and the Command, the next snapshot is taken. Failure when the Mission goes on or is archived already.
    """
    mission, group_id = view["mission"], view["mission"]["groupId"]
    if view["group"]["state"] == "archived":
        raise Failure(f"{group_id} is archived already, since {view['group']['archivedAt']}")
    if mission["state"] not in TERMINAL:
        raise Failure(f"{mission['missionId']} is {mission['state']}: only the Group of an ended Mission is archived")
    attempts_left = ARCHIVE_ATTEMPTS
    while True:
        snapshot = node.get(at("groups", group_id, "snapshots"))["snapshots"][-1]
        payload = _archive_payload(node, snapshot)
        try:
            events: list[dict[str, Any]] = node.send(ARCHIVE, payload, group_id=group_id)["events"]
        except (RevisionConflict, InvalidCommand):
            # An Event or an entry of the policy log came between.
            attempts_left -= 1
            if not attempts_left:
                raise
        else:
            return events


def _archive_payload(node: Reach, snapshot: dict[str, Any]) -> dict[str, Any]:
    encoded = jcs.canonical(snapshot)
    if len(encoded) <= FRAME_BYTES // 2:
        return {"snapshot": snapshot}
    with tempfile.TemporaryDirectory(prefix="mwnode-archive-") as directory:
        file = Path(directory) / "snapshot.json"
        file.write_bytes(encoded)
        return {"snapshotHash": node.put_artifact(file)["contentHash"]}


def submission_of(node: Reach, view: dict[str, Any]) -> dict[str, Any]:
    """The revision and Artifact set that the Coordinator submitted for approval; Failure when none waits."""
    mission = view["mission"]
    if mission["state"] != "awaiting_approval":
        raise Failure(
            f"{mission['missionId']} is {mission['state']}, so nothing of it waits for approval: see `mwnode waiting`"
        )
    submitted = None
    for event in events_of(node, mission["groupId"]):
        if event["kind"] == "mission.submitted_for_approval":
            submitted = event["payload"]
    if submitted is None:
        raise Failure(f"the submission of {mission['missionId']} lies beyond what you may read")
    payload: dict[str, Any] = submitted
    return payload
