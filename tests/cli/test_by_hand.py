"""The commands of the README, one after the other, on a HOME that is served and on one that is not."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from mwnode.home import load_key, open_home
from mwnode.trust.keys import generate
from tests.cli.finished import harness
from tests.cli.support import ServedHome, cli

PLAN = Path(__file__).resolve().parents[2] / "fixtures" / "plans" / "release.toml"


@pytest.fixture(scope="module", params=["served", "at rest"])
def home(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A HOME with a coordinator."""
    home = tmp_path_factory.mktemp("hand") / "home"
    assert cli("init", home).status == 0
    served = ServedHome(home) if request.param == "served" else None
    assert cli("agent", "add", "coordinator", "--home", home).status == 0
    yield home
    if served is not None:
        assert served.stop()[0] == 0


@pytest.fixture(scope="module")
def mission(home: Path) -> dict[str, str]:
    """A Mission made from the release plan."""
    return cli("mission", "create", PLAN, "--home", home, "--json").json


@pytest.mark.req("R-6.1-01", "R-6.1-03", "R-6.1-04")
def test_an_agent_is_added_shown_listed_changed_and_revoked(home: Path) -> None:
    added = cli(
        "agent", "add", "anna", "--capability", "acme.test@1.2.0", "--slots", "3", "--home", home, "--json"
    ).json
    assert added["agentId"] == "urn:mwnode:agent:anna"
    assert added["cardVersion"] == 1
    assert stat.S_IMODE(Path(added["keyFile"]).stat().st_mode) == 0o600
    card = cli("agent", "show", "anna", "--home", home, "--json").json
    assert card["maxConcurrency"] == 3
    assert [f"{each['id']}@{each['version']}" for each in card["capabilities"]] == ["acme.test@1.2.0"]
    assert card["publicKeys"][0]["keyId"] == added["keyId"]
    assert "seed" not in json.dumps(card)
    again = cli("agent", "add", "anna", "--home", home, "--json").json
    assert (again["cardVersion"], again["keyId"]) == (2, added["keyId"])
    card = cli("agent", "show", "anna", "--home", home, "--json").json
    assert (card["maxConcurrency"], [each["id"] for each in card["capabilities"]]) == (3, ["acme.test"])
    changed = cli("agent", "add", "anna", "--capability", "acme.lint@2.0.0", "--home", home)
    assert "acme.lint@2.0.0" in changed.out
    assert "acme.test" not in changed.out
    assert "slots:        3" in changed.out
    assert "acme.lint@2.0.0" in cli("agent", "add", "anna", "--slots", "4", "--home", home).out
    assert cli("agent", "add", "plain", "--home", home).status == 0
    listed = {row["agentId"]: row for row in cli("agent", "list", "--home", home, "--json").json["agents"]}
    assert listed["urn:mwnode:agent:anna"]["capabilities"] == ["acme.lint@2.0.0"]
    assert listed["urn:mwnode:agent:anna"]["slots"] == 4
    assert listed["urn:mwnode:agent:plain"]["capabilities"] == ["mwnode.generic@1.0.0"]
    assert cli("agent", "revoke", "anna", "--home", home, "--json").json["status"] == "revoked"
    assert cli("agent", "revoke", "anna", "--home", home).status == 1
    unknown = cli("agent", "show", "nobody", "--home", home)
    assert unknown.status == 1
    assert "registered are" in unknown.err
    assert "mwnode agent list" in unknown.err


def test_a_card_made_elsewhere_is_imported(home: Path, tmp_path: Path) -> None:
    card = cli("agent", "show", "coordinator", "--home", home, "--json").json
    key = generate("urn:test:key", load_key(home / "keys" / "coordinator.key").principal, "urn:o", b"7" * 32)
    entry = {**card["publicKeys"][0], "keyId": f"{card['agentId']}:imported", "publicKey": key.public_key}
    draft = {**card, "agentId": "urn:mwnode:agent:imported", "cardVersion": 1, "publicKeys": [entry]}
    unsigned = {name: value for name, value in draft.items() if name not in {"signature", "issuedAt"}}
    (tmp_path / "card.json").write_text(json.dumps(unsigned))
    told = cli("agent", "import", tmp_path / "card.json", "--home", home, "--json").json
    assert told == {"agentId": "urn:mwnode:agent:imported", "cardVersion": 1}
    (tmp_path / "card.json").write_text("[]")
    refused = cli("agent", "import", tmp_path / "card.json", "--home", home)
    assert refused.status == 1
    assert "is no JSON object" in refused.err


@pytest.mark.req("R-6.4-20")
def test_a_key_kept_elsewhere_is_registered_by_its_public_half_and_a_bad_point_is_not(home: Path) -> None:
    key = generate("urn:test:elsewhere", load_key(home / "keys" / "owner.key").principal, "urn:o", b"8" * 32)
    given = ("--key-id", "urn:test:elsewhere", "--public-key", key.public_key)
    added = cli("human", "add", "otto", *given, "--home", home, "--json").json
    assert added == {"humanId": "urn:mwnode:human:otto", "keyId": "urn:test:elsewhere", "keyFile": None}
    other = generate("urn:test:derived", load_key(home / "keys" / "owner.key").principal, "urn:o", b"6" * 32)
    derived = cli("human", "add", "oda", "--public-key", other.public_key, "--home", home, "--json").json
    assert derived["keyId"].startswith("urn:mwnode:key:oda:")
    listed = [row["keyId"] for row in cli("key", "list", "--home", home, "--json").json["keys"]]
    assert derived["keyId"] in listed
    identity = "AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
    refused = cli("human", "add", "eve", "--key-id", "urn:test:bad", "--public-key", identity, "--home", home)
    assert refused.status == 1
    assert len(refused.err.splitlines()) == 1


@pytest.mark.req("R-6.4-19")
def test_one_public_key_never_stands_for_two(home: Path) -> None:
    key = generate("urn:test:alias", load_key(home / "keys" / "owner.key").principal, "urn:o", b"9" * 32)
    first = ("--key-id", "urn:test:alias", "--public-key", key.public_key, "--home", home)
    assert cli("human", "add", "alias", *first).status == 0
    second = ("--key-id", "urn:test:alias:2", "--public-key", key.public_key, "--home", home)
    assert cli("human", "add", "other", *second).status == 1


@pytest.mark.req("R-6.4-18")
def test_keys_are_added_listed_and_revoked(home: Path) -> None:
    service = cli(
        "key", "add", "archive", "--principal", "service:urn:mwnode:service:archive", "--home", home, "--json"
    )
    key_id = service.json["keyId"]
    rows = {row["keyId"]: row for row in cli("key", "list", "--home", home, "--json").json["keys"]}
    assert rows[key_id]["principal"] == "service:urn:mwnode:service:archive"
    assert rows[key_id]["revokedAt"] is None
    assert {row["principal"].partition(":")[0] for row in rows.values()} == {"agent", "human", "service"}
    assert cli("key", "revoke", key_id, "--home", home).status == 0
    rows = {row["keyId"]: row for row in cli("key", "list", "--home", home, "--json").json["keys"]}
    assert rows[key_id]["revokedAt"] is not None
    assert "mwnode key list" in cli("key", "revoke", "urn:nobody", "--home", home).err
    second = cli("key", "add", "second", "--principal", "service:urn:mwnode:service:archive", "--home", home, "--json")
    assert (
        cli("key", "revoke", second.json["keyId"][-8:], "--home", home, "--json").json["keyId"] == second.json["keyId"]
    )
    assert cli("key", "add", "x", "--principal", "robot:r", "--home", home).status == 2


def test_a_key_of_another_name_is_not_taken_for_an_agent(home: Path) -> None:
    refused = cli("agent", "add", "owner", "--home", home)
    assert refused.status == 1
    assert "is the key of human urn:mwnode:human:owner" in refused.err


@pytest.mark.req("R-7.1-07", "R-15.1-17")
def test_a_mission_is_created_listed_and_shown(home: Path, mission: dict[str, str]) -> None:
    assert mission["state"] == "active"
    listed = cli("mission", "list", "--home", home, "--json").json["missions"]
    assert mission["missionId"] in [entry["missionId"] for entry in listed]
    part = mission["missionId"][-8:]
    view = cli("mission", "show", part, "--home", home, "--json").json
    assert view["mission"]["missionOwner"] == {"type": "human", "id": "urn:mwnode:human:owner"}
    assert view["mission"]["coordinator"]["agentId"] == "urn:mwnode:agent:coordinator"
    assert "tally 1.4" in cli("mission", "show", part, "--home", home).out
    assert "no Mission of yours" in cli("mission", "show", "nonsense", "--home", home).err


def test_waiting_and_why_say_what_a_new_mission_waits_for(home: Path, mission: dict[str, str]) -> None:
    entries = [e for e in cli("waiting", "--home", home, "--json").json if e["on"]["id"] == mission["missionId"]]
    assert entries[0]["who"] == {"type": "agent", "id": "urn:mwnode:agent:coordinator"}
    assert set(entries[0]) == {"who", "action", "on", "since", "deadline", "ifNothing"}
    mine = cli("waiting", "--mine", "--home", home, "--json").json
    assert all(entry["who"]["id"] == "urn:mwnode:human:owner" for entry in mine)
    facts = cli("why", mission["missionId"], "--home", home, "--json").json
    assert "mission.created" in facts[0]["fact"]
    assert facts[0]["sequence"] == 1
    assert set(facts[0]) == {"fact", "eventId", "sequence", "rule"}
    assert "mission.created" in cli("why", "tally 1.4", "--home", home).out
    assert "is called 'nonsense'" in cli("why", "nonsense", "--home", home).err


@pytest.mark.req("R-7.1-29", "R-4-02")
def test_a_directive_is_a_message_without_authority(home: Path, mission: dict[str, str]) -> None:
    posted = cli("mission", "direct", mission["missionId"], "Please hurry", "--home", home, "--json").json
    events = cli("events", mission["groupId"], "--home", home, "--json").lines
    message = next(event for event in events if event["kind"] == "message.posted")["payload"]["message"]
    assert message["messageId"] == posted["messageId"]
    assert message["authority"] is False
    assert not [event for event in events if event["kind"].startswith("work.")]
    told = cli("events", mission["missionId"], "--after", str(len(events) - 1), "--home", home)
    assert len(told.out.splitlines()) == 1


def test_an_artifact_is_put_and_got_back_byte_for_byte(home: Path, tmp_path: Path) -> None:
    source, target = tmp_path / "data", tmp_path / "back"
    source.write_bytes(bytes(range(256)) * 1000)
    stored = cli("artifact", "put", source, "--home", home, "--json").json
    assert stored["sizeBytes"] == 256_000
    assert cli("artifact", "get", stored["contentHash"], "-o", target, "--home", home).status == 0
    assert target.read_bytes() == source.read_bytes()
    missing = cli("artifact", "get", "0" * 64, "--home", home)
    assert missing.status == 1
    assert missing.out == ""
    assert cli("artifact", "list", "--home", home, "--json").json == {"artifacts": []}


@pytest.mark.req("R-15.1-13")
def test_a_command_made_by_hand_is_sent_and_sent_again(home: Path, mission: dict[str, str], tmp_path: Path) -> None:
    events = cli("events", mission["groupId"], "--home", home, "--json").lines
    owner = next(m for m in events[0]["payload"]["memberships"] if m["role"] == "mission_owner")
    draft = {
        "protocolVersion": "0.1",
        "actionId": f"urn:test:action:{home.parent.name}",
        "actor": {"type": "human", "id": "urn:mwnode:human:owner"},
        "kind": "message.post",
        "groupId": mission["groupId"],
        "membershipEpoch": owner["membershipEpoch"],
        "correlationId": "urn:test:correlation",
        "payload": {
            "messageId": f"urn:test:message:{home.parent.name}",
            "conversationId": f"{mission['groupId']}:mission",
            "content": "by hand",
        },
    }
    (tmp_path / "draft.json").write_text(json.dumps(draft))
    signed = cli("sign", "command", tmp_path / "draft.json", "--key", home / "keys" / "owner.key")
    assert signed.status == 0, signed.err
    (tmp_path / "command.json").write_text(signed.out)
    first = cli("command", "send", tmp_path / "command.json", "--home", home, "--json").json
    assert first["events"][0]["kind"] == "message.posted"
    assert cli("command", "send", tmp_path / "command.json", "--home", home, "--json").json == first
    (tmp_path / "command.json").write_text(signed.out.replace("by hand", "by fraud"))
    refused = cli("command", "send", tmp_path / "command.json", "--home", home)
    assert refused.status == 1
    assert refused.err.startswith("mwnode: AUTH_INVALID_SIGNATURE")


def test_a_mission_that_was_not_submitted_is_not_approved(home: Path, mission: dict[str, str]) -> None:
    refused = cli("mission", "approve", mission["missionId"], "--home", home)
    assert refused.status == 1
    assert "nothing of it waits for approval" in refused.err


@pytest.mark.req("R-7.2-07")
def test_a_coordinator_is_replaced(home: Path, mission: dict[str, str]) -> None:
    assert cli("agent", "add", "relief", "--home", home).status == 0
    assert cli("mission", "replace-coordinator", mission["missionId"], "relief", "--home", home).status == 0
    view = cli("mission", "show", mission["missionId"], "--home", home, "--json").json
    assert view["mission"]["coordinator"]["agentId"] == "urn:mwnode:agent:relief"
    assert view["mission"]["coordinator"]["coordinatorEpoch"] == 2


@pytest.mark.req("R-7.1-19", "R-7.1-20")
def test_a_mission_is_cancelled_once(home: Path) -> None:
    made = cli("mission", "create", PLAN, "--home", home, "--json").json
    assert cli("mission", "cancel", made["missionId"], "--home", home, "--json").json["state"] == "cancelled"
    refused = cli("mission", "cancel", made["missionId"], "--home", home)
    assert refused.status == 1
    assert refused.err.startswith("mwnode: INVALID_STATE_TRANSITION")
    ended = cli("mission", "watch", made["missionId"], "--home", home)
    assert ended.status == 1
    assert "mission.cancelled" in ended.out


def test_an_agents_process_needs_a_key_and_an_executor_that_exists(home: Path, tmp_path: Path) -> None:
    assert cli("worker", "--exec", "true", "--home", home).status == 2
    served = open_home(home).served()
    if served is None:
        refused = cli("worker", "--exec", "true", "--key", home / "keys" / "coordinator.key", "--home", home)
        assert refused.status == 1
        assert "no node serves" in refused.err
        return
    options = ("--url", served.url, "--ca", served.ca or "", "--key", home / "keys" / "coordinator.key")
    absent = cli("worker", "--exec", "/nowhere/executor", *options)
    assert absent.status == 1
    assert "no program '/nowhere/executor'" in absent.err
    human = cli("worker", "--exec", "true", *options[:-1], home / "keys" / "owner.key")
    assert human.status == 1
    assert "give an Agent's key" in human.err
    (tmp_path / "plan.toml").write_text("[mission]\ntitle = 1\n")
    plan = cli("coordinator", "--plan", tmp_path / "plan.toml", *options)
    assert plan.status == 1
    assert "plan.toml:2" in plan.err


def test_a_key_is_sealed_and_opened_by_the_passphrase_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, secret = tmp_path / "home", tmp_path / "secret"
    assert cli("init", home).status == 0
    owner = home / "keys" / "owner.key"
    assert "MWNODE_PASSPHRASE_FILE" in cli("key", "seal", owner).err
    monkeypatch.setenv("MWNODE_PASSPHRASE_FILE", str(secret))
    secret.write_text("\n")
    assert "empty passphrase" in cli("key", "seal", owner).err
    secret.write_text("correct horse\n")
    assert cli("key", "seal", owner, "--json").json["sealed"] is True
    assert b'"seed"' not in owner.read_bytes()
    assert stat.S_IMODE(owner.stat().st_mode) == 0o600
    assert cli("mission", "list", "--home", home, "--json").json == {"missions": []}
    assert cli("key", "seal", owner).status == 1, "once is enough"
    monkeypatch.delenv("MWNODE_PASSPHRASE_FILE")
    assert "is sealed" in cli("mission", "list", "--home", home).err


@pytest.mark.req("R-6.1-10")
def test_an_agents_record_is_shown_beside_its_card(tmp_path: Path) -> None:
    made = harness(tmp_path / "home")
    made.work("verified")
    name = made.workers[0].id
    made.close()
    told = cli("agent", "performance", name, "--home", tmp_path / "home", "--json").json
    assert [(row["completed"], row["failed"]) for row in told["performance"]] == [(1, 0)]
    shown = cli("agent", "performance", name, "--home", tmp_path / "home")
    assert shown.status == 0
    assert "completed" in shown.out
    assert cli("agent", "performance", "nobody", "--home", tmp_path / "home").status == 1
