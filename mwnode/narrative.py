"""Events in plain words, one line each, for people who watch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mwnode.protocol.commands import CORE, EXT
from mwnode.protocol.identifiers import CORE_EXTENSION

DECLINED = f"{CORE}.offer_declined"
WORDS_MAX = 1000
"""Characters of what somebody said that stand on one line."""


class Narrator:
    """Tells one Group's Events; remembers what WorkItems are called, so that each line names them."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def tell(self, event: dict[str, Any]) -> str:
        """One Event as one line: sequence, time, kind, subject, who."""
        payload = event["payload"]
        work_item = payload.get("workItem")
        if work_item:
            self._names[work_item["workItemId"]] = work_item_name(work_item)
        subject = self._subject(event)
        # A Message moves nothing; the state that its Event repeats is the Mission's.
        state = "" if event["kind"].startswith("message.") else payload.get("state", "")
        told = f"{subject} is {state}" if subject and state else subject or state
        place = f"{event.get('sequence', '-'):>5}  {clock(event['occurredAt'])}"
        kind = event["kind"].removeprefix(f"{EXT}.core.").removeprefix(f"{EXT}.").removeprefix(f"{CORE}.")
        said = words(event)
        tail = f": {said}" if said else ""
        return f"{place}  {kind:<30} {told:<28} {short(event['actor']['id'])}{tail}".rstrip()

    def name(self, work_item_id: str) -> str:
        """What a WorkItem is called, as far as its Events were told."""
        return self._names.get(work_item_id, short(work_item_id))

    def _subject(self, event: dict[str, Any]) -> str:
        payload = event["payload"]
        item = work_item_of(event)
        if item is not None:
            return self.name(item)
        member = payload.get("membership")
        if member:
            return f"{member['role']} {short(member['member']['id'])}"
        if event["kind"].startswith("mission."):
            return "mission"
        return ""


def words(event: dict[str, Any]) -> str:
    """What somebody said in an Event, on one line: a Message's text, a reason, what is needed; empty for no words."""
    payload = event["payload"]
    message = payload.get("message")
    if message is not None:
        return _one_line([_block(block) for block in message["content"]])
    if event["kind"] == DECLINED:
        mine = [one for one in payload.get("offers", ()) if one["agentId"] == event["actor"]["id"]]
        reasons = [one["declineReason"] for one in mine if "declineReason" in one]
        return _one_line([*reasons[-1:], payload.get("detail", "")])
    needed = payload.get("requiredResolution")
    said = [payload.get("feedback") or payload.get("reason", ""), f"needed: {needed}" if needed else ""]
    return _one_line([*said, payload.get("resolution", "")])


def _block(block: dict[str, Any]) -> str:
    """One block of a Message; data for programs has no words."""
    if block["type"] == "artifact_ref":
        return f"[{block['artifactHash']}]"
    text: str = block.get("text", "")
    return text


def _one_line(parts: Sequence[Any]) -> str:
    """Several texts on one line, cut where it would fill a screen."""
    text = "; ".join(" ".join(part.split()) for part in parts if isinstance(part, str) and part.strip())
    return text if len(text) <= WORDS_MAX else f"{text[:WORDS_MAX]}..."


def work_item_of(event: dict[str, Any]) -> str | None:
    """The WorkItem that an Event is about, if it is about one."""
    payload = event["payload"]
    places = (event, payload, payload.get("workItem", {}))
    return next((place["workItemId"] for place in places if "workItemId" in place), None)


def work_item_name(work_item: dict[str, Any]) -> str:
    """What people call a WorkItem: its name in the plan, else its goal."""
    contract = work_item["contract"]
    name = contract.get("constraints", {}).get("localId")
    return name if isinstance(name, str) and name else str(contract["goal"])[:40]


def work_item_round(work_item: dict[str, Any]) -> int:
    """Which time a work of the plan is done in this WorkItem: 1, one more for each change request since."""
    correction = work_item["contract"].get("constraints", {}).get("correction")
    number = correction.get("round") if isinstance(correction, dict) else 0
    return 1 + number if isinstance(number, int) else 1


def mission_title(mission: dict[str, Any]) -> str:
    """What people call a Mission: its title, else its objective."""
    title = core_data(mission).get("title")
    return title if isinstance(title, str) and title else str(mission["objective"])[:60]


def core_data(document: dict[str, Any]) -> dict[str, Any]:
    """mwnode's own extension data of a document as JSON; nothing where somebody else put something else there."""
    data = document.get("extensions", {}).get(CORE_EXTENSION, {}).get("data")
    return data if isinstance(data, dict) else {}


def short(identifier: str) -> str:
    """The telling end of an identifier."""
    return identifier.rpartition(":")[2]


def short_id(identifier: str) -> str:
    """The last characters of an identifier: random ones, so they tell it apart from others and may be typed for it."""
    return identifier[-8:]


def moment(timestamp: str | None) -> str:
    """A timestamp to the second, for people; a dash for none."""
    return "-" if timestamp is None else f"{timestamp[:10]} {clock(timestamp)}"


def clock(timestamp: str) -> str:
    """The time of day of a timestamp, to the second."""
    return timestamp[11:19]
