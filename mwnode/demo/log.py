"""One Group's log as the demonstration sees it, over HTTP, and what can be read from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from mwnode.client.http import HttpClient
from mwnode.demo.processes import Deadline
from mwnode.narrative import Narrator, short, work_item_name, work_item_of
from mwnode.protocol import jcs

WAIT_SECONDS = 2


class GroupLog:
    """The Events of one Group, in order, as far as they were read."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.events: list[dict[str, Any]] = []
        self.names: dict[str, str] = {}
        self.narrator = Narrator()
        self.board: dict[str, tuple[str, str]] = {}

    @property
    def mission_state(self) -> str:
        """The Mission's state after the last Event that tells one."""
        return next(
            (event["payload"]["state"] for event in reversed(self.events) if event["kind"].startswith("mission.")), ""
        )

    def read(self, client: HttpClient, wait: int = WAIT_SECONDS) -> list[dict[str, Any]]:
        """Read what is new; waits a little when nothing is."""
        page: list[dict[str, Any]] = client.events(self.group_id, after=len(self.events), wait=wait)["events"]
        for event in page:
            self._take(event)
        return page

    def follow(
        self, client: HttpClient, until: Callable[[GroupLog], bool], deadline: Deadline
    ) -> Iterator[dict[str, Any]]:
        """Read on until a condition on the log holds; DemoFailure when the deadline passes."""
        while not until(self):
            deadline.check()
            yield from self.read(client)

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
            self.names[item["workItemId"]] = work_item_name(item)
        name = self.names.get(work_item_of(event) or "")
        if name is None or not event["kind"].startswith("work."):
            return
        _, owner = self.board.get(name, ("", ""))
        if "owner" in payload:
            owner = short(payload["owner"]["agentId"])
        self.board[name] = (payload["state"], owner)
