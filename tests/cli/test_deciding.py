"""What the MissionOwner is shown before deciding, and what is told of words and refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mwnode.authority.policy import Policy
from mwnode.protocol.commands import CORE, PAYLOADS
from mwnode.protocol.identifiers import mission_conversation_id
from mwnode.protocol.instants import parse
from mwnode.testing import Harness, MissionHandle, WorkHandle
from tests.cli.finished import harness, named
from tests.cli.support import Done, cli
from tests.cli.test_sure import Terminal


class Made:
    """A HOME at rest with one Mission that awaits approval and one that is at work."""

    def __init__(self, home: Path, submitted: MissionHandle, at_work: MissionHandle, content_hash: str) -> None:
        self.home = home
        self.submitted = submitted.mission_id
        self.at_work = at_work.mission_id
        self.work_item_id = ""
        self.content_hash = content_hash


def _talk(made: Harness, mission: MissionHandle, text: str) -> None:
    payload = {
        "messageId": made.new_id(),
        "conversationId": mission_conversation_id(mission.group_id),
        "content": text,
    }
    made.coordinator.send("message.post", payload, group_id=mission.group_id)


@pytest.fixture
def made(tmp_path: Path) -> Made:
    node = harness(tmp_path / "home")
    worker = node.workers[0]
    submitted = node.mission(title="Release one")
    submitted.add(worker)
    work = submitted.authorize()
    work.offer(worker)
    work.accept(worker)
    work.start(worker)
    content_hash = work.publish(b"all pass\n", worker, extensions=named("report.txt"))
    work.submit([content_hash], worker)
    work.review()
    submitted.submit([content_hash])
    at_work = node.mission(title="Release one")
    at_work.add(worker)
    second = at_work.authorize()
    second.offer(worker)
    worker.send(
        f"{CORE}.offer_decline",
        {"workItemId": second.work_item_id, "reason": "capacity", "detail": "both slots\nare taken"},
        group_id=at_work.group_id,
    )
    _talk(node, at_work, "Nobody has room today")
    node.close()
    found = Made(tmp_path / "home", submitted, at_work, content_hash)
    found.work_item_id = second.work_item_id
    return found


@pytest.fixture(scope="module")
def made_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("drafts") / "home"
    assert cli("init", home).status == 0
    return home


@pytest.mark.req("R-7.3-06")
def test_without_a_terminal_nothing_is_approved_unless_it_is_said(made: Made) -> None:
    refused = cli("mission", "approve", made.submitted, "--home", made.home)
    assert refused.status == 2
    assert "give --yes" in refused.err
    assert cli("mission", "approve", made.submitted, "--home", made.home, "--json").status == 2
    view = cli("mission", "show", made.submitted, "--home", made.home, "--json").json
    assert view["mission"]["state"] == "awaiting_approval"
    approved = cli("mission", "approve", made.submitted, "--yes", "--home", made.home, "--json").json
    assert (approved["state"], approved["artifactHashes"]) == ("approved", [made.content_hash])


@pytest.mark.req("R-5-04")
def test_one_person_directs_monitors_intervenes_and_decides(made: Made) -> None:
    """Each act is a Command that this person signed, or a read that is open to this person and to no stranger."""

    def act(*words: str) -> None:
        done = cli(*words, "--home", made.home, "--json")
        assert done.status == 0, done.err

    act("mission", "direct", made.at_work, "The archive is due on Friday")
    act("mission", "priority", made.at_work, "high", "--reason", "the release")
    act("mission", "cancel", made.at_work, "--reason", "not needed any more", "--yes")
    act("mission", "approve", made.submitted, "--yes")
    owner = {"type": "human", "id": "urn:mwnode:human:owner"}
    told = {
        event["kind"]: event["payload"]
        for name in (made.at_work, made.submitted)
        for event in (json.loads(line) for line in cli("events", name, "--home", made.home, "--json").out.splitlines())
    }
    assert told["message.posted"]["message"]["author"] == owner
    assert told["ext.mwnode.core.mission_prioritized"]["priority"] == "high"
    assert told["mission.cancelled"]["state"] == "cancelled"
    assert told["mission.approved"]["approval"]["approver"] == owner
    view = cli("mission", "show", made.submitted, "--home", made.home, "--json").json
    assert view["mission"]["state"] == "approved"
    for words in (("mission", "list"), ("waiting",), ("why", made.submitted)):
        act(*words)
    assert cli("verify", "--home", made.home).status == 0, "every Command in it is signed by whom it names"
    stranger = cli("human", "add", "stranger", "--home", made.home)
    assert stranger.status == 0, stranger.err
    key = made.home / "keys" / "stranger.key"
    closed = cli("mission", "show", made.submitted, "--home", made.home, "--key", key)
    assert closed.status == 1
    refused = cli("mission", "direct", made.submitted, "hello", "--home", made.home, "--key", key)
    assert refused.status == 1


def test_what_is_to_be_approved_is_shown_with_work_file_type_and_size(made: Made) -> None:
    shown = cli("mission", "approve", made.submitted, "--home", made.home).out
    assert "Build, check and publish the archive" in shown
    row = next(line for line in shown.splitlines() if made.content_hash in line)
    for word in ("Run the unit tests", "report.txt", "text/plain", "9"):
        assert word in row


def test_only_a_humans_key_approves(made: Made) -> None:
    key = made.home / "keys" / "organization.key"
    for command in (["approve", made.submitted, "--yes"], ["request-changes", made.submitted, "more"]):
        refused = cli("mission", *command, "--home", made.home, "--key", key)
        assert refused.status == 1
        assert "needs a human's key" in refused.err


def test_events_tell_what_was_said(made: Made) -> None:
    told = cli("events", made.at_work, "--home", made.home).out
    assert "Nobody has room today" in told
    declined = next(line for line in told.splitlines() if "offer_declined" in line)
    assert "capacity; both slots are taken" in declined
    feedback = "Please name the licence"
    assert cli("mission", "request-changes", made.submitted, feedback, "--home", made.home).status == 0
    told = cli("events", made.submitted, "--home", made.home).out
    assert feedback in next(line for line in told.splitlines() if "changes_requested" in line)


def test_watch_says_why_it_ends_otherwise(made: Made) -> None:
    reached = cli("mission", "watch", made.submitted, "--until", "awaiting_approval", "--home", made.home)
    assert reached.status == 0, reached.err
    silent = cli("mission", "watch", made.at_work, "--home", made.home)
    assert silent.status == 1
    assert "is active, not approved, and no node serves" in silent.err
    assert "mwnode serve" in silent.err
    assert cli("mission", "cancel", made.at_work, "--home", made.home).status == 0
    ended = cli("mission", "watch", made.at_work, "--until", "awaiting_approval", "--home", made.home)
    assert ended.status == 1
    assert "ended as cancelled, not as awaiting_approval" in ended.err
    assert "no node serves" in cli("events", made.at_work, "--follow", "--home", made.home).err


def test_a_part_of_an_identifier_or_a_title_is_enough(made: Made) -> None:
    def show(name: str) -> Any:
        return cli("mission", "show", name, "--home", made.home, "--json")

    assert show(made.at_work[-8:]).json["mission"]["missionId"] == made.at_work
    assert show(made.at_work[: len(made.at_work) - 1]).json["mission"]["missionId"] == made.at_work
    several = show("Release one")
    assert several.status == 1
    assert made.at_work[-8:] in several.err
    assert cli("mission", "cancel", made.submitted, "--home", made.home).status == 0
    assert show("Release one").json["mission"]["missionId"] == made.at_work, "what is open is meant"
    assert "mission list" in show("urn:uuid:nothing").err
    facts = cli("why", made.work_item_id[-8:], "--home", made.home, "--json").json
    assert facts[0]["fact"].startswith("work.authorized")
    assert cli("why", made.work_item_id[:-1], "--home", made.home, "--json").json == facts


def test_lists_show_a_short_id_and_the_title(made: Made) -> None:
    listed = cli("mission", "list", "--home", made.home).out
    row = next(line for line in listed.splitlines() if made.at_work in line)
    assert row.startswith(made.at_work[-8:])
    assert "Release one" in row
    waiting = cli("waiting", "--home", made.home).out
    assert made.submitted[-8:] in waiting
    assert "Release one" in waiting


def test_what_waits_fits_a_terminal_and_is_whole_lines_in_a_pipe(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    command = f"mwnode mission approve {made.submitted[-8:]}"
    piped = cli("waiting", "--home", made.home).out.splitlines()
    assert [line for line in piped if line.endswith(command)]
    assert max(map(len, piped)) > 72
    for width in (72, 300):
        monkeypatch.setattr("mwnode.cli.waiting.terminal_width", lambda width=width: width)
        told = cli("waiting", "--home", made.home).out
        assert max(map(len, told.splitlines())) <= width
        for text in (command, "Release one", "mission.approve", "keeps waiting for"):
            assert text in told
    assert told.splitlines() == piped


def test_the_beginning_of_a_hash_is_enough(made: Made, tmp_path: Path) -> None:
    digits = made.content_hash.removeprefix("sha256:")
    for text in (digits[:8], f"sha256:{digits[:12]}", digits):
        assert cli("artifact", "get", text, "--home", made.home).out == "all pass\n"
    unknown = "0" if digits[0] != "0" else "1"
    assert "mwnode artifact list" in cli("artifact", "get", unknown * 8, "--home", made.home).err
    assert "is no hash" in cli("artifact", "get", "nonsense", "--home", made.home).err
    assert "report.txt" in cli("artifact", "list", "--home", made.home).out


def test_a_mission_is_given_to_registered_agents_only(made: Made, tmp_path: Path) -> None:
    nobody = cli("mission", "replace-coordinator", made.at_work, "nobody", "--home", made.home)
    assert nobody.status == 1
    assert "registered are" in nobody.err
    assert "worker-1" in nobody.err
    plan = tmp_path / "plan.toml"
    plan.write_text(
        """[mission]
objective = "Try"
coordinator = "nobody"
deadline = "P1D"
budget = { toolCallLimit = 5 }
definitionOfDone = [{ criterionId = "d", description = "done", evidenceRequired = ["deterministic_test"] }]
[[work]]
id = "w"
goal = "Work"
deliverables = [{ id = "o" }]
criteria = [{ id = "c", description = "done", check = "exit 0" }]
"""
    )
    refused = cli("mission", "create", plan, "--home", made.home)
    assert refused.status == 1
    assert "plan.toml:3: mission.coordinator: no Agent is called 'nobody'" in refused.err
    assert "--coordinator: no Agent" in cli("mission", "create", plan, "--coordinator", "none", "--home", made.home).err
    assert cli("mission", "create", plan, "--coordinator", "coordinator", "--home", made.home).status == 0
    assert cli("mission", "create", plan, "--dry-run", "--json").json["work"] == ["w"]


def test_a_command_is_drafted_filled_in_signed_and_sent(made: Made, tmp_path: Path) -> None:
    drafted = cli("command", "draft", "message.post", "--mission", made.at_work, "--home", made.home)
    assert drafted.status == 0, drafted.err
    (tmp_path / "draft.json").write_text(drafted.out.replace("<content>", "by hand"))
    key = made.home / "keys" / "owner.key"
    signed = cli("sign", "command", tmp_path / "draft.json", "--key", key, "-o", tmp_path / "command.json")
    assert signed.status == 0, signed.err
    sent = cli("command", "send", tmp_path / "command.json", "--home", made.home, "--json").json
    assert sent["events"][0]["payload"]["message"]["content"][0]["text"] == "by hand"
    (tmp_path / "none.json").touch()
    assert "is empty" in cli("command", "send", tmp_path / "none.json", "--home", made.home).err


def _sent(draft: Done, tmp_path: Path, home: Path, **said: Any) -> Done:
    """A draft, filled in by hand, signed and sent."""
    document = json.loads(draft.out)
    document["payload"] |= said
    (tmp_path / "draft.json").write_text(json.dumps(document))
    key = home / "keys" / "owner.key"
    signed = cli("sign", "command", tmp_path / "draft.json", "--key", key, "-o", tmp_path / "command.json")
    assert signed.status == 0, signed.err
    return cli("command", "send", tmp_path / "command.json", "--home", home, "--json")


def test_a_draft_is_filled_with_what_is_known_of_mission_and_work(made: Made, tmp_path: Path) -> None:
    def draft(*arguments: str) -> Done:
        return cli("command", "draft", *arguments, "--mission", made.at_work, "--home", made.home)

    view = cli("mission", "show", made.at_work, "--home", made.home, "--json").json
    amend = draft("ext.mwnode.core.budget_amend")
    assert json.loads(amend.out)["expectedRevision"] == view["mission"]["revision"]
    assert amend.err == ""
    amended = _sent(amend, tmp_path, made.home, budget={"toolCallLimit": 20000}, reason="more")
    assert amended.status == 0, amended.err
    cancel = draft("work.cancel", "--work", made.work_item_id)
    document = json.loads(cancel.out)
    assert (document["workItemId"], document["groupId"]) == (made.work_item_id, view["mission"]["groupId"])
    assert document["expectedRevision"] == view["workItems"][0]["revision"]
    approval = json.loads(draft("mission.approve").out)["payload"]["approval"]
    assert (approval["missionId"], approval["groupId"]) == (made.at_work, view["mission"]["groupId"])
    assert approval["approver"] == {"type": "human", "id": "urn:mwnode:human:owner"}
    ended = _sent(draft("mission.cancel"), tmp_path, made.home, reason="enough")
    assert ended.json["events"][0]["payload"]["state"] == "cancelled"


def test_a_draft_says_which_option_would_have_filled_in_more(made: Made) -> None:
    def draft(*arguments: str) -> Done:
        return cli("command", "draft", *arguments, "--home", made.home)

    alone = draft("work.cancel")
    assert alone.status == 0
    assert "--mission ID and --work WORK would fill in" in alone.err
    assert json.loads(alone.out)["groupId"] == "<groupId>"
    assert json.loads(alone.out)["membershipEpoch"] == "<number>"
    assert "--work WORK would fill in" in draft("work.cancel", "--mission", made.at_work).err
    assert draft("mission.create").err == ""
    fresh = json.loads(draft("mission.create").out)
    assert fresh["groupId"] == fresh["payload"]["groupId"]
    assert "leave --mission out" in draft("ext.mwnode.core.key_bind", "--mission", made.at_work).err
    assert "give --mission ID too" in draft("work.cancel", "--work", made.work_item_id).err


@pytest.mark.parametrize("kind", sorted(PAYLOADS))
def test_every_kind_has_a_draft_with_all_that_it_must_have(kind: str, made_home: Path) -> None:
    drafted = json.loads(cli("command", "draft", kind, "--home", made_home).out)
    assert drafted["kind"] == kind
    required = {field.encode_name for field in msgspec.structs.fields(PAYLOADS[kind]) if field.required}
    assert set(drafted["payload"]) == required


# --- what else waits for a human --------------------------------------------------------------------------------------


@pytest.fixture
def risky(tmp_path: Path) -> tuple[Path, str, WorkHandle]:
    """A HOME at rest where work of high risk waits for permission to run."""
    node = harness(tmp_path / "home")
    worker = node.workers[0]
    permissions = [{"resource": "urn:example:site", "operations": ["write.page", "delete.page"]}]
    mission = node.mission(title="Go live", permissions=permissions)
    mission.add(worker)
    work = mission.authorize(
        sideEffectRisk="high_risk", executionApproval="human_required", allowedResources=permissions
    )
    work.offer(worker)
    work.accept(worker)
    node.close()
    return tmp_path / "home", mission.mission_id, work


def approvals(home: Path, mission_id: str) -> list[dict[str, Any]]:
    told = cli("events", mission_id, "--home", home, "--json").out
    events = [json.loads(line) for line in told.splitlines()]
    return [event["payload"] for event in events if event["kind"] == "approval.execution.granted"]


@pytest.mark.req("R-12-17")
def test_a_human_permits_what_waits_for_it_and_sees_what(risky: tuple[Path, str, WorkHandle]) -> None:
    home, mission_id, work = risky
    waiting = cli("waiting", "--mine", "--home", home)
    assert f"mwnode mission permit {mission_id[-8:]} {work.work_item_id[-8:]}" in waiting.out
    asked = cli("mission", "permit", mission_id, work.work_item_id, "--home", home)
    assert asked.status == 2
    assert "give --yes" in asked.err
    assert "write.page, delete.page on urn:example:site" in asked.out
    assert not approvals(home, mission_id)
    wrong = cli("mission", "permit", mission_id, work.work_item_id, "--operation", "read", "--yes", "--home", home)
    assert "does not allow read; it allows delete.page, write.page" in wrong.err
    permitted = cli(
        "mission", "permit", mission_id, work.work_item_id, "--operation", "write.page", "--for", "PT10M", "--yes",
        "--home", home, "--json",
    )  # fmt: skip
    assert permitted.json["operations"] == ["write.page"]
    (given,) = approvals(home, mission_id)
    assert given["resources"] == [{"resource": "urn:example:site", "operations": ["write.page"]}]
    assert "mwnode mission permit" not in cli("waiting", "--mine", "--home", home).out


@pytest.fixture
def judged(tmp_path: Path) -> tuple[Path, WorkHandle, str]:
    """A HOME at rest where a submitted WorkItem waits for a human's word."""
    node = harness(tmp_path / "home")
    worker = node.workers[0]
    mission = node.mission(title="Judge")
    mission.add(worker)
    criterion = {"criterionId": "nice", "description": "It reads well", "evidenceRequired": ["human_review"]}
    work = mission.authorize(acceptanceCriteria=[criterion])
    work.offer(worker)
    work.accept(worker)
    work.start(worker)
    content_hash = work.publish(b"A text.\n", worker, extensions=named("text.txt"))
    work.submit([content_hash], worker)
    node.close()
    return tmp_path / "home", work, content_hash


def reviews(home: Path) -> list[dict[str, Any]]:
    """The Evidence that a human told the Coordinator of."""
    events = [json.loads(line) for line in cli("events", "Judge", "--home", home, "--json").out.splitlines()]
    blocks = [block for event in events for block in event["payload"].get("message", {}).get("content", ())]
    return [block["data"] for block in blocks if block["type"] == "data_ref"]


def test_a_review_shows_what_is_signed_and_wants_to_be_told(judged: tuple[Path, WorkHandle, str]) -> None:
    home, work, content_hash = judged
    command = ("mission", "review", "Judge", work.work_item_id, "--passed", "--comment", "I read it", "--home", home)
    refused = cli(*command)
    assert refused.status == 2
    assert "give --yes" in refused.err
    for shown in ("It reads well", "text.txt", "text/plain", content_hash, "Run the unit tests", "Budget used"):
        assert shown in refused.out
    revision = cli("mission", "show", "Judge", "--home", home, "--json").json["workItems"][0]["revision"]
    assert f"--revision {revision}" in refused.err
    other = cli(*command, "--revision", str(revision - 1))
    assert other.status == 1
    assert "nothing was signed" in other.err
    assert not reviews(home)
    done = cli(*command, "--revision", str(revision), "--json").json
    (evidence,) = reviews(home)
    assert (evidence["evidenceId"], evidence["artifactHashes"]) == (done["evidenceId"], [content_hash])
    assert (evidence["criterionIds"], evidence["result"], evidence["method"]) == (["nice"], "passed", "I read it")


@pytest.mark.req("R-13.2-05")
@pytest.mark.parametrize("kinds", [["reviewer_assessment"], ["reviewer_assessment", "human_review"]])
def test_a_human_says_what_reviewers_could_not(tmp_path: Path, kinds: list[str]) -> None:
    home = tmp_path / "home"
    node = harness(home)
    worker = node.workers[0]
    mission = node.mission(title="Judge")
    mission.add(worker)
    criterion = {"criterionId": "clear", "description": "It reads well", "evidenceRequired": kinds}
    work = mission.authorize(acceptanceCriteria=[criterion])
    for step in (work.offer, work.accept, work.start):
        step(worker)
    content_hash = work.publish(b"A text.\n", worker, extensions=named("text.txt"))
    work.submit([content_hash], worker)
    node.close()
    command = ("mission", "review", "Judge", work.work_item_id, "--passed", "--yes", "--home", home)
    if "human_review" not in kinds:
        unnamed = cli(*command)
        assert unnamed.status == 1
        assert "those are: none; besides, named by --criterion, what reviewers judge: clear" in unnamed.err
        assert not reviews(home)
    done = cli(*command, "--criterion", "clear", "--json").json
    assert done["criterionIds"] == ["clear"]
    signed = reviews(home)
    assert [one["type"] for one in signed] == sorted(kinds) == [one["type"] for one in done["evidence"]]


@pytest.mark.parametrize("answer, signed", [("n\n", 0), ("y\n", 1)])
def test_a_review_asks_on_a_terminal(
    judged: tuple[Path, WorkHandle, str], monkeypatch: pytest.MonkeyPatch, answer: str, signed: int
) -> None:
    home, work, _ = judged
    with monkeypatch.context() as patched:
        patched.setattr("sys.stdin", Terminal(answer))
        done = cli("mission", "review", "Judge", work.work_item_id, "--failed", "--home", home)
    assert "You say: nice failed." in done.out
    assert "Sign exactly this?" in done.err
    assert done.status == (0 if signed else 1)
    assert len(reviews(home)) == signed


def test_a_named_revision_is_the_only_one_that_is_approved_or_sent_back(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    for command in (("approve", made.submitted), ("request-changes", made.submitted, "more")):
        refused = cli("mission", *command, "--revision", "1", "--home", made.home)
        assert refused.status == 1
        assert "not at 1 as --revision says: nothing was signed" in refused.err
    with monkeypatch.context() as patched:
        patched.setattr("sys.stdin", Terminal("n\n"))
        declined = cli("mission", "request-changes", made.submitted, "Name the \x1b[2Jlicence", "--home", made.home)
    assert declined.status == 1
    assert "nothing was signed" in declined.err
    assert "To be changed: Name the  [2Jlicence" in declined.out
    assert made.content_hash in declined.out
    view = cli("mission", "show", made.submitted, "--home", made.home, "--json").json
    revision = str(view["mission"]["revision"])
    assert view["mission"]["state"] == "awaiting_approval"
    approved = cli("mission", "approve", made.submitted, "--revision", revision, "--home", made.home, "--json").json
    assert approved["missionRevision"] == view["mission"]["revision"]


def test_what_is_approved_is_shown_with_evidence_budget_and_what_done_means(made: Made) -> None:
    shown = cli("mission", "approve", made.submitted, "--home", made.home).out
    assert "0 of 10000 toolCall" in shown
    assert "The archive exists and its tests pass" in shown
    row = next(line for line in shown.splitlines() if "reviewer_assessment" in line)
    for word in ("green", "passed", "coordinator"):
        assert word in row


def test_only_what_was_submitted_is_reviewed_and_only_by_criteria_for_humans(made: Made) -> None:
    refused = cli("mission", "review", made.at_work, made.work_item_id, "--passed", "--home", made.home)
    assert "only what was submitted is reviewed" in refused.err
    assert cli("mission", "review", made.at_work, made.work_item_id, "--home", made.home).status == 2


def test_only_failed_or_blocked_work_is_tried_again(made: Made) -> None:
    refused = cli("mission", "retry", made.at_work, made.work_item_id, "--home", made.home)
    assert "only failed or blocked work is tried again" in refused.err


def test_a_mission_is_given_another_budget_and_priority(made: Made) -> None:
    wrong = cli("mission", "budget", made.at_work, "patience=3", "--home", made.home)
    assert wrong.status == 2
    assert "toolCallLimit" in wrong.err
    assert cli("mission", "budget", made.at_work, "toolCallLimit=12", "--home", made.home).status == 0
    assert cli("mission", "priority", made.at_work, "high", "--home", made.home).status == 0
    view = cli("mission", "show", made.at_work, "--home", made.home, "--json").json
    assert view["mission"]["budget"]["toolCallLimit"] == 12
    assert "high" in next(
        line for line in cli("mission", "list", "--home", made.home).out.splitlines() if made.at_work in line
    )


def test_an_upload_is_found_again_by_whoever_put_it_until_it_is_published(made: Made, tmp_path: Path) -> None:
    def uploads(name: str) -> Any:
        key = made.home / "keys" / f"{name}.key"
        return cli("artifact", "uploads", "--home", made.home, "--key", key, "--json").json["uploads"]

    (tmp_path / "new.txt").write_text("nobody names this\n")
    (tmp_path / "published.txt").write_text("all pass\n")
    put = cli("artifact", "put", tmp_path / "new.txt", "--home", made.home)
    assert "mwnode artifact uploads" in put.out
    assert cli("artifact", "put", tmp_path / "published.txt", "--home", made.home).status == 0
    (listed,) = uploads("owner")
    assert listed["contentHash"] in put.out
    assert listed["sizeBytes"] == 18
    kept = parse(listed["removedAfter"]).whole_microseconds() - parse(listed["storedAt"]).whole_microseconds()
    assert kept == Policy().upload_retention * 1_000_000
    assert cli("human", "add", "other", "--home", made.home).status == 0
    assert uploads("other") == []
    assert listed["contentHash"] in cli("artifact", "uploads", "--home", made.home).out
    settings = made.home / "mwnode.toml"
    settings.write_text(settings.read_text().replace("[policy]\n", "[policy]\nupload_retention = 0\n"))
    assert uploads("owner")[0]["removedAfter"] is None


def test_a_refusal_for_the_state_says_what_the_state_admits(made: Made) -> None:
    for command in (("budget", made.submitted, "toolCallLimit=12000"), ("priority", made.submitted, "high")):
        refused = cli("mission", *command, "--home", made.home)
        assert refused.status == 1
        assert "INVALID_STATE_TRANSITION" in refused.err
        assert "while it is awaiting_approval, `mwnode mission` can: approve, request-changes" in refused.err
    same = cli("mission", "replace-coordinator", made.at_work, "coordinator", "--home", made.home)
    assert "that Agent is the Coordinator already; `mwnode why" in same.err
    assert "can: permit, review" in cli("mission", "approve", made.at_work, "--home", made.home).err
    assert "can: permit, review" in cli("mission", "archive", made.at_work, "--home", made.home).err
    assert cli("mission", "cancel", made.at_work, "--home", made.home).status == 0
    assert "can: direct, archive" in cli("mission", "cancel", made.at_work, "--home", made.home).err
    assert cli("mission", "archive", made.at_work, "--home", made.home).status == 0
    assert "it can only be read" in cli("mission", "direct", made.at_work, "hello", "--home", made.home).err
