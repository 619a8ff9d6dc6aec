"""One Group's log as the demonstration sees it, over HTTP, and what can be read from it."""

from __future__ import annotations

from typing import Any

from mwnode.client.http import HttpClient
from mwnode.narrative import Narrator, short, work_item_name, work_item_of
from mwnode.protocol import jcs


class GroupLog:
    """The Events of one Group, in order, as far as they were read."""

    def __init__(self, group_id: str, title: str = "") -> None:
        self.group_id = group_id
        self.title = title
        self.events: list[dict[str, Any]] = []
        self.names: dict[str, str] = {}
        self.dependencies: dict[str, tuple[str, ...]] = {}
        """What each WorkItem waits for, by name."""
        self.narrator = Narrator()
        self.board: dict[str, tuple[str, str]] = {}

    @property
    def over(self) -> bool:
        """Whether the Mission has ended."""
        return self.mission_state in ("approved", "failed", "cancelled")

    @property
    def mission_state(self) -> str:
        """The Mission's state after the last Event that tells one."""
        return next(
            (event["payload"]["state"] for event in reversed(self.events) if event["kind"].startswith("mission.")), ""
        )

    def read(self, client: HttpClient, wait: int = 0) -> list[dict[str, Any]]:
        """Read what is new; waits a little when nothing is."""
        page: list[dict[str, Any]] = client.events(self.group_id, after=len(self.events), wait=wait)["events"]
        for event in page:
            self._take(event)
        return page

    def latest(self, kind: str) -> dict[str, Any]:
        """The payload of the last Event of a kind. LookupError when there is none."""
        return dict(self.of_kind(kind)[-1]["payload"])

    def about(self, name: str, kind: str = "") -> list[dict[str, Any]]:
        """The Events about the WorkItem of that name, of one kind if one is given."""
        return [
            event
            for event in self.events
            if self.names.get(work_item_of(event) or "") == name and kind in ("", event["kind"])
        ]

    def about_agent(self, name: str, kind: str) -> list[dict[str, Any]]:
        """The Events of one kind that an Agent of that name caused."""
        return [event for event in self.of_kind(kind) if short(event["actor"]["id"]) == name]

    def item_of(self, name: str) -> str:
        """The identifier of the newest WorkItem of that name. LookupError when there is none."""
        return [item for item, known in self.names.items() if known == name][-1]

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        """The Events of one kind."""
        return [event for event in self.events if event["kind"] == kind]

    def sequence_of(self, kind: str, name: str) -> int:
        """Where the last Event of a kind about the WorkItem of that name stands; 0 when there is none."""
        matching = [event for event in self.of_kind(kind) if self.names.get(work_item_of(event) or "") == name]
        return matching[-1]["sequence"] if matching else 0

    def states(self) -> dict[str, str]:
        """Every WorkItem's state by its name."""
        return {name: state for name, (state, _) in self.board.items()}

    def encoded(self) -> list[bytes]:
        """The Events as canonical bytes, which are the bytes that were signed and stored."""
        return [jcs.canonical(event) for event in self.events]

    def _take(self, event: dict[str, Any]) -> None:
        self.events.append(event)
        payload = event["payload"]
        if event["kind"] == "work.authorized":
            item = payload["workItem"]
            name = self.names[item["workItemId"]] = work_item_name(item)
            waited_for = item["contract"]["dependencyWorkItemIds"]
            self.dependencies[name] = tuple(self.names.get(one, short(one)) for one in waited_for)
        subject = self.names.get(work_item_of(event) or "")
        if subject is None or not event["kind"].startswith("work."):
            return
        _, owner = self.board.get(subject, ("", ""))
        if "owner" in payload:
            owner = short(payload["owner"]["agentId"])
        self.board[subject] = (payload["state"], owner)
