"""What a served node logs: in either form, and never a secret."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import sys
from typing import Any

import pytest

from mwnode.cli.logs import JsonLines, log_to
from mwnode.client import HttpClient
from mwnode.protocol.errors import MissionWeaveError
from mwnode.testing import Harness
from tests.gateway.conftest import Served, start
from tests.gateway.conftest import served as served_node

__all__ = ["served_node", "start"]


def test_every_line_is_one_json_object(monkeypatch: pytest.MonkeyPatch) -> None:
    # As a new process has it.
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    stream = io.StringIO()
    log_to(stream, "json")
    logging.getLogger("mwnode.x").info("said %s\nin two lines", "something")
    try:
        raise ValueError("broken")
    except ValueError:
        logging.getLogger("mwnode.y").exception("it failed")
    first, second = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert first["message"] == "said something\nin two lines"
    assert (first["level"], first["logger"], set(first)) == ("info", "mwnode.x", {"at", "level", "logger", "message"})
    assert first["at"].endswith("Z")
    assert second["level"] == "error"
    assert "ValueError: broken" in second["traceback"]


def test_lines_for_people(monkeypatch: pytest.MonkeyPatch) -> None:
    # As a new process has it.
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    stream = io.StringIO()
    log_to(stream)
    logging.getLogger("mwnode.x").warning("well")
    assert stream.getvalue().endswith("WARNING mwnode.x: well\n")


async def test_no_secret_is_logged_whatever_goes_wrong(served_node: Served, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    harness: Harness = served_node.harness
    mission = harness.mission()
    wire = await served_node.agent(harness.workers[0])
    http: HttpClient = served_node.http(harness.owner)
    token = await asyncio.to_thread(http.authenticate)

    def go_wrong() -> None:
        http.use_token(token[:-4] + "AAAA")
        for path in ("/v0.1/missions/urn:x:1", "/v0.1/groups/urn:x:1/events"):
            with pytest.raises(MissionWeaveError):
                http.get(path)

    await asyncio.to_thread(go_wrong)
    await wire.command(harness.workers[0].command("work.start", {"workItemId": "urn:x:1"}, group_id=mission.group_id))
    await wire.error()
    await wire.send_raw(b'{"sessionToken":"%b"' % wire.token.encode())
    await wire.error()
    harness.owner.key.sign(b"something")
    logging.getLogger("mwnode.test").error("%s %r", harness.owner.key, harness.workers[0].key)
    said = caplog.text + "".join(JsonLines().format(record) for record in caplog.records)
    seeds = [who.key._seed for who in (harness.owner, harness.organization, harness.workers[0])]
    secrets: list[Any] = [token, wire.token, *(seed.hex() for seed in seeds), *(repr(seed) for seed in seeds)]
    assert not [secret for secret in secrets if secret in said]
    assert sys.getsizeof(said) > 100, "there was something to look at"
