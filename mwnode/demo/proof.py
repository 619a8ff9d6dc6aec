"""What is looked at when all acts are over: every log that was watched, and the file itself."""

from __future__ import annotations

from collections import Counter
from typing import Any

from mwnode.demo.processes import run
from mwnode.demo.report import Check
from mwnode.demo.stage import Stage
from mwnode.narrative import work_item_of
from mwnode.trust.registry import Registry
from mwnode.trust.verification import Verified, verify


def prove_logs(stage: Stage) -> None:
    """Read every watched Group to its head, and look at all of them together."""
    logs = list({log.group_id: log for log in stage.logs}.values())
    for log in logs:
        while stage.take(log):
            pass
    events = [event for log in logs for event in log.events]
    gaps = [log.title for log in logs if [e["sequence"] for e in log.events] != list(range(1, len(log.events) + 1))]
    stage.check("no Group's log has a gap", bool(events) and not gaps, f"{len(logs)} Groups, {len(events)} Events")
    known = Registry.from_evidence(stage.human.get("/v0.1/registry"))
    good = sum(isinstance(verify(raw, "event", known), Verified) for log in logs for raw in log.encoded())
    stage.check(
        "every Event's signature verifies for its reader, against the Registry",
        good == len(events),
        f"{good} of {len(events)} Events",
    )
    # One Command may lead to several Events, but never to the same one about the same thing twice.
    effects = Counter(
        (event["cause"]["id"], event["kind"], work_item_of(event), event["groupId"])
        for event in events
        if event["cause"]["type"] == "command"
    )
    commands = {effect[0] for effect in effects}
    stage.check("no Command took effect twice, in any Group", set(effects.values()) == {1}, f"{len(commands)} Commands")
    signers = {event["acceptedBy"]["id"] for event in events}
    stage.check("one authority accepted every Event", len(signers) == 1, " ".join(signers))
    epochs = [
        (owner["ownershipEpoch"], event["sequence"], event["groupId"], work_item_of(event))
        for event in events
        if event["kind"] == "work.offer.accepted"
        for owner in (event["payload"]["owner"],)
    ]
    per_item: dict[tuple[str, str | None], list[int]] = {}
    for epoch, _, group, item in epochs:
        per_item.setdefault((group, item), []).append(epoch)
    stage.check(
        "Ownership Epochs of every WorkItem only ever rise",
        all(found == sorted(set(found)) for found in per_item.values()),
        f"{len(epochs)} owners of {len(per_item)} WorkItems",
    )


def prove_file(home: str) -> Check:
    """`mwnode verify`, with nothing running."""
    result: dict[str, Any] = run("verify", "--home", home)
    findings = [f"{finding['where']}: {finding['detail']}" for finding in result["findings"]]
    seen = f"{result['groups']} Groups, {result['events']} Events, {result['artifacts']} Artifacts"
    return Check(
        "`mwnode verify` finds nothing wrong with the file", result["ok"] and not findings, "; ".join(findings) or seen
    )
