"""Nodes that are broken on purpose: whatever cannot find these cannot find anything."""

from __future__ import annotations

from typing import Any

import msgspec

from mwnode.authority import decide as deciding
from mwnode.node import Node
from mwnode.store.batch import Batch
from mwnode.store.outcome import Accepted
from tests.simulation.machines import NodeMachine
from tests.simulation.world import World


def _with_node(world: World, change: Any) -> None:
    """Change every node that is started."""
    machine = world.node
    watch = machine._watch

    def watched() -> None:
        change(machine, machine.node)
        watch()

    machine._watch = watched  # type: ignore[method-assign]


def answer_otherwise(world: World) -> None:
    """A duplicate is answered with other bytes."""

    def change(machine: NodeMachine, node: Node) -> None:
        submit = node.submit

        def changed(raw: bytes, origin: Any, reply: Any) -> None:
            def answer(outcome: Any) -> None:
                if isinstance(outcome, Accepted) and outcome.duplicate:
                    outcome = msgspec.structs.replace(outcome, events=(*outcome.events, outcome.events[0]))
                reply(outcome)

            submit(raw, origin, answer)

        node.submit = changed  # type: ignore[method-assign]

    _with_node(world, change)


def acknowledge_early(world: World) -> None:
    """What was never committed is acknowledged: a crash in the transaction still lets the answers out."""

    def change(machine: NodeMachine, node: Node) -> None:
        committer = node._committer
        fill = committer._fill

        def filled(txn: Any, items: Any, audits: Any) -> Batch:
            batch = fill(txn, items, audits)
            txn.pages.flush_all()
            for item in items:
                outcome = getattr(getattr(item, "outcome", None), "outcome", None)
                if isinstance(outcome, Accepted):
                    item.reply(outcome)
                    item.reply = lambda _: None
            return batch

        committer._fill = filled  # type: ignore[method-assign]

    _with_node(world, change)


def heed_no_session(world: World) -> None:
    """Commands signed under a replaced Session Epoch are decided like any other."""
    check = deciding._check_session
    deciding._check_session = lambda case: None
    world.undo.append(lambda: setattr(deciding, "_check_session", check))


def double_effects(world: World) -> None:
    """Each run has an idempotency key of its own."""
    act = world.outside.act
    count = iter(range(1_000_000))

    def acted(agent_id: str, work: Any) -> bool:
        work.idempotency_key = f"{work.idempotency_key} {next(count)}"
        return act(agent_id, work)

    world.outside.act = acted  # type: ignore[method-assign]


def keep_tokens(world: World) -> None:
    """A session token gets into the file."""

    def change(machine: NodeMachine, node: Node) -> None:
        issue = node.tokens.issue

        def issued(claims: Any) -> str:
            token = issue(claims)
            node.call(lambda txn: txn.put_meta("kept", token.encode()))
            return token

        node.tokens.issue = issued  # type: ignore[method-assign]

    _with_node(world, change)


MUTATIONS: dict[str, tuple[Any, tuple[int, ...], str]] = {
    "answers a duplicate otherwise": (answer_otherwise, (6, 4), "answered twice"),
    "acknowledges what a crash takes back": (acknowledge_early, (27,), "not there"),
    "heeds no Session Epoch": (heed_no_session, (5, 2), "under session epoch"),
    "gives each run a key of its own": (double_effects, (10, 2), "two idempotency keys"),
    "keeps a session token": (keep_tokens, (2,), "a secret"),
}
"""Each with the seeds to look in, those that find it first, and words of what is found."""
