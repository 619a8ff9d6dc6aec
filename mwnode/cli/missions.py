"""What the mission commands share: finding a Mission, one's own Membership in it, and what was submitted."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mwnode.cli.compose import principal
from mwnode.cli.failure import Failure
from mwnode.cli.naming import Candidate, pick
from mwnode.cli.output import emit, facts
from mwnode.cli.possible import possible_now
from mwnode.cli.reach import Reach, at, found
from mwnode.cli.target import Target
from mwnode.narrative import core_data, mission_title, short, work_item_name
from mwnode.protocol import jcs, terms
from mwnode.protocol.commands import EXT
from mwnode.protocol.errors import InvalidCommand, InvalidStateTransition, RevisionConflict
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


def find_mission(node: Reach, name: str, *, whole: bool = False) -> dict[str, Any]:
    """The view of the Mission that an identifier, a part of it or of its Group's, or its title means.

    Among several, one that is not over yet is preferred. With ``whole`` a part is not enough.
    """
    listed = missions(node)
    known = [_candidate(entry) for entry in listed]
    if ":" in name and not any(name in one.identifier or name in one.group for one in known):
        # Who may read a Mission need not be a Member of it.
        view = found(node, at("missions", name))
        if view is not None:
            return view
    if not any(name in one.identifier or name in one.group for one in known):
        known = [_candidate(entry, titles=node) for entry in listed]
    chosen: dict[str, Any] = node.get(at("missions", pick("Mission", name, known, "mwnode mission list", whole=whole)))
    return chosen


def _candidate(entry: dict[str, Any], titles: Reach | None = None) -> Candidate:
    """A listed Mission as something that may be meant; with a node to ask, under its title."""
    title = ""
    if titles is not None:
        title = mission_title(titles.get(at("missions", entry["missionId"]))["mission"])
    return Candidate(entry["missionId"], title, entry["state"] not in TERMINAL, entry["groupId"])


class Names:
    """What people call the caller's Missions and their WorkItems."""

    def __init__(self, node: Reach) -> None:
        self.candidates: list[Candidate] = []
        self.missions: dict[str, str] = {}
        """Each Mission's title, by the identifiers of the Mission and of its WorkItems."""
        self.mission_ids: dict[str, str] = {}
        """Each WorkItem's Mission."""
        self._names: dict[str, str] = {}
        for listed in missions(node):
            view = node.get(at("missions", listed["missionId"]))
            title, live = mission_title(view["mission"]), listed["state"] not in TERMINAL
            self._add(listed["missionId"], title, title, live)
            for item in view["workItems"]:
                self._add(item["workItemId"], work_item_name(item), title, live)
                self.mission_ids[item["workItemId"]] = listed["missionId"]

    def _add(self, identifier: str, name: str, title: str, live: bool) -> None:
        self.candidates.append(Candidate(identifier, name, live))
        self.missions[identifier] = title
        self._names[identifier] = name

    def of(self, identifier: str) -> str:
        """The name of a Mission or WorkItem, else the telling end of its identifier."""
        return self._names.get(identifier, short(identifier))


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
    try:
        answer = node.send(
            kind,
            payload,
            group_id=view["mission"]["groupId"],
            membership_epoch=epoch,
            expected_revision=view["mission"]["revision"] if kind.startswith("mission.") else None,
        )
    except InvalidStateTransition as error:
        if "state" not in (error.rejection.details or {}) and view["group"]["state"] != "archived":
            raise  # the state admits it; something else does not
        raise Failure(f"{error.code}: {error.message}; {possible_now(view)}") from error
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
        raise Failure(
            f"{mission['missionId']} is {mission['state']}: only the Group of an ended Mission is archived; "
            f"{possible_now(view)}"
        )
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


def file_names(manifest: dict[str, Any]) -> list[str]:
    """The paths under `outputs/` that a Worker states for an Artifact, if it does."""
    return terms.paths_in(core_data(manifest).get("deliverables"))


def told(target: Target, view: dict[str, Any], receipt: dict[str, Any]) -> None:
    """Say what became of a Mission by a Command about it."""
    payload = receipt["payload"]
    document = {
        "missionId": view["mission"]["missionId"],
        "eventId": receipt["eventId"],
        "state": payload["state"],
        "revision": payload["revision"],
    }
    emit(target.as_json, document, facts(document))
