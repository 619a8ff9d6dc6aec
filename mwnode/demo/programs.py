"""Agents that are programs of their own: `python -m mwnode.demo.programs ROLE URL CA KEY DIRECTORY`.

`mwnode worker` runs a command for each WorkItem. These do more than that: they embed `mwnode.Worker`, talk with each
other while they work, and one of them proposes further work. `hauler` is the ordinary Worker with settings of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from mwnode.client import Client
from mwnode.client.http import segment
from mwnode.demo.agents import in_seconds, new_id
from mwnode.demo.documents import contract
from mwnode.home import load_key
from mwnode.protocol.identifiers import CLARIFICATION_SCHEMA, mission_conversation_id
from mwnode.worker.executor import SubprocessExecutor, Work
from mwnode.worker.scheduler import Settings
from mwnode.worker.settings import WorkerSettings
from mwnode.worker.worker import Worker

QUESTION = "Does a word with an apostrophe count as one word for --longest?"
ANSWER = "Yes: tally's words keep the apostrophes inside them, and --longest takes them as they are."
EXAMPLE = "Write an example of --longest for its readers"


async def main(role: str, url: str, ca: str, key: str, directory: str, *more: str) -> None:
    """Work as one of the roles until the process is ended."""
    task = asyncio.current_task()
    assert task is not None, "this runs as a task"
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    with suppress(asyncio.CancelledError):  # SIGTERM is how such a program ends
        async with await Client.connect(url, load_key(Path(key)), ca, patient=True) as client:
            await asyncio.gather(*ROLES[role](client, Path(directory), *more))


def _log(event: str, details: Mapping[str, Any]) -> None:
    sys.stderr.write(msgspec.json.encode({"event": event, **details}).decode() + "\n")
    sys.stderr.flush()


# --- who analyses, and can be asked -----------------------------------------------------------------------------------


def analyst(client: Client, directory: Path, command: str) -> tuple[Any, ...]:
    """Analyses with an executor like any other, and answers whoever asks meanwhile."""
    executor = SubprocessExecutor(command, directory=Path.cwd(), environment=os.environ)
    worker = Worker(client, executor=executor, directory=directory, log=_log)
    return worker.run(), _answer(client)


async def _answer(client: Client) -> None:
    """Answer every open question in which this Agent is mentioned, once."""
    answered: set[str] = set()
    while True:
        for mission in (await client.get("/v0.1/missions"))["missions"]:
            for message in await messages(client, mission["groupId"]):
                asked = client.key.principal.id in {one["id"] for one in message.get("mentions", ())}
                if asked and message["messageId"] not in answered:
                    answered.add(message["messageId"])
                    payload = {
                        "messageId": new_id(),
                        "conversationId": message["conversationId"],
                        "content": ANSWER,
                        "mentions": [message["author"]],
                        "references": [message["messageId"]],
                    }
                    await client.send("message.post", payload, group_id=mission["groupId"])
                    _log("answered", {"question": message["messageId"]})
        await asyncio.sleep(0.5)


async def messages(client: Client, group_id: str) -> list[dict[str, Any]]:
    """The Messages of a Group that this Agent may see."""
    page = await client.get(f"/v0.1/groups/{segment(group_id)}/events", limit=1000)
    return [event["payload"]["message"] for event in page["events"] if event["kind"] == "message.posted"]


# --- who designs, asks, and proposes ----------------------------------------------------------------------------------


def architect(client: Client, directory: Path, asks: str) -> tuple[Any, ...]:
    """Designs: asks another Worker what is not clear, and proposes work that nobody has thought of."""

    async def design(work: Work) -> None:
        group_id = work.assignment.group_id
        conversation = mission_conversation_id(group_id)
        question, asked = new_id(), new_id()
        await client.send(
            "message.post",
            _message(conversation, QUESTION, question, False, messageId=asked, mentions=[_agent(asks)]),
            group_id=group_id,
        )
        answer = await _answer_to(client, group_id, asked)
        settled = _message(conversation, "That settles it.", question, True, references=[answer["messageId"]])
        await client.send("message.post", settled, group_id=group_id)
        proposal = {"proposalId": new_id(), "contract": example_contract()}
        await client.send("work.propose", proposal, group_id=group_id)
        text = answer["content"][0]["text"]
        decided = {"question": QUESTION, "answer": text, "answeredBy": answer["author"]["id"]}
        (work.outputs / "design.json").write_text(json.dumps(decided, indent=2) + "\n", encoding="utf-8")

    return (Worker(client, design, directory=directory, log=_log).run(),)


async def _answer_to(client: Client, group_id: str, message_id: str) -> dict[str, Any]:
    """Wait for the Message that refers to another one."""
    while True:
        for message in await messages(client, group_id):
            if message_id in message.get("references", ()):
                return message
        await asyncio.sleep(0.3)


def _agent(agent_id: str) -> dict[str, str]:
    return {"type": "agent", "id": agent_id}


def _message(conversation: str, text: str, question: str, resolved: bool, **members: Any) -> dict[str, Any]:
    """A Message that opens or closes a question between Workers."""
    data = {"question": question, "resolved": resolved}
    content = [{"type": "text", "text": text}, {"type": "data_ref", "schema": CLARIFICATION_SCHEMA, "data": data}]
    return {"messageId": new_id(), "conversationId": conversation, "content": content, **members}


def example_contract() -> dict[str, Any]:
    """The work that is proposed: small, reversible, and within the plan's budget."""
    document = contract(
        EXAMPLE,
        run="example longest",
        requiredCapabilities=[{"id": "demo.release.write", "version": "1.0.0"}],
        deadline=in_seconds(3600),
        budget={"wallClockSecondsLimit": 60, "toolCallLimit": 2},
    )
    document["constraints"]["deliverables"] = {"result": {"path": "example.txt"}}
    return document


# --- an ordinary Worker with settings of its own ----------------------------------------------------------------------


def hauler(client: Client, directory: Path, command: str, settings: str) -> tuple[Any, ...]:
    """`mwnode worker` with one slot and other rules of scheduling, as a program that embeds it would have them."""
    scheduling = msgspec.convert(json.loads(settings), Settings)
    own = WorkerSettings(scheduling=scheduling, progress_seconds=0.5, usage_seconds=2.0)
    executor = SubprocessExecutor(command, directory=Path.cwd(), environment=os.environ)
    return (Worker(client, executor=executor, slots=1, settings=own, directory=directory, log=_log).run(),)


ROLES: dict[str, Any] = {"analyst": analyst, "architect": architect, "hauler": hauler}

if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
