"""What else a Mission awaits of its human: permission to run, a review, another try, a budget, a priority."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, get_args

import click
import msgspec

from mwnode.cli.asking import Consent, sign_exactly
from mwnode.cli.compose import new_id, now, principal
from mwnode.cli.failure import Failure
from mwnode.cli.missions import act, find_mission, told
from mwnode.cli.naming import Candidate, pick
from mwnode.cli.output import emit, facts
from mwnode.cli.principals import human_key
from mwnode.cli.reach import Reach, at, found, reach
from mwnode.cli.submissions import budget_used, read_log, work_shown
from mwnode.cli.target import Target, at_node
from mwnode.narrative import core_data, mission_title, short_id, work_item_name
from mwnode.protocol.assessments import BY_HUMAN, BY_OTHERS
from mwnode.protocol.commands import CORE, Priority
from mwnode.protocol.documents import Budget
from mwnode.protocol.identifiers import EVIDENCE_SCHEMA, RETRY_SCHEMA, mission_conversation_id
from mwnode.protocol.instants import parse_duration
from mwnode.trust.keys import SigningKey, sign_mapping

F = TypeVar("F", bound=Callable[..., Any])

LIMITS = tuple(one.encode_name for one in msgspec.structs.fields(Budget) if one.encode_name != "currency")
_ENDED = frozenset({"verified", "cancelled"})


def find_work(view: dict[str, Any], name: str) -> dict[str, Any]:
    """The WorkItem of a Mission's view that its name in the plan, an identifier or a part of one means."""
    items: list[dict[str, Any]] = view["workItems"]
    known = [Candidate(one["workItemId"], work_item_name(one), one["state"] not in _ENDED) for one in items]
    chosen = pick("WorkItem", name, known, "mwnode mission show ID")
    return next(one for one in items if one["workItemId"] == chosen)


def _limits(given: tuple[str, ...], currency: str | None) -> dict[str, Any]:
    """A budget out of NAME=NUMBER options; UsageError for anything else."""
    budget: dict[str, Any] = {}
    for one in given:
        name, _, number = one.partition("=")
        if name not in LIMITS:
            raise click.UsageError(f"{name!r} is no limit of a budget; these are: {', '.join(LIMITS)}")
        try:
            amount = float(number)
        except ValueError:
            raise click.UsageError(f"{one!r}: give a number, such as {name}=600") from None
        budget[name] = int(amount) if amount.is_integer() else amount
    if currency is not None:
        budget["currency"] = currency
    try:
        msgspec.convert(budget, Budget)
    except msgspec.ValidationError as error:
        raise click.UsageError(f"no budget: {_plain(error)}") from None
    return budget


def _plain(error: msgspec.ValidationError) -> str:
    """What is wrong with a budget, in words that name the limit."""
    text, _, path = str(error).partition(" - at `$.")
    return f"{path.rstrip('`')} takes a whole number of at least 0" if "`int`" in text and path else text


def consent_options(command: F) -> F:
    """Give a command --yes and --revision; it takes them as one argument, `consent`."""

    @wraps(command)
    def call(*arguments: Any, yes: bool, revision: int | None, **others: Any) -> Any:
        return command(*arguments, consent=Consent(yes, revision), **others)

    yes = click.option("--yes", is_flag=True, help="Sign without being asked; needed where there is no terminal.")
    named = click.option(
        "--revision",
        type=click.IntRange(min=1),
        metavar="N",
        help="In place of --yes: sign only if this is the revision, as it was shown.",
    )
    wrapped: Any = yes(named(call))
    result: F = wrapped
    return result


@click.command()
@click.argument("name", metavar="ID")
@click.argument("work", metavar="WORK")
@click.option("--operation", "operations", multiple=True, metavar="OP", help="Only this; default: all that it wants.")
@click.option("--for", "seconds", default="PT1H", show_default=True, metavar="DURATION", help="How long it is good.")
@click.option("--comment", default="", help="A remark that is signed with the Approval.")
@consent_options
@at_node
def permit(
    target: Target, name: str, work: str, operations: tuple[str, ...], seconds: str, comment: str, consent: Consent
) -> None:
    """Let a WorkItem that needs a human's word run: for its present owner, these operations, and so long."""
    key = human_key(target, "permitting")
    try:
        lasting = int(parse_duration(seconds))
    except ValueError as error:
        raise click.UsageError(f"--for: {error}") from None
    with reach(target, key) as node:
        view = find_mission(node, name)
        item = find_work(view, work)
        if item["state"] != "queued":
            raise Failure(f"{work_item_name(item)} is {item['state']}: only what somebody accepted is permitted to run")
        wanted = item["contract"]["allowedResources"]
        granted = _narrowed(wanted, operations)
        named = list(dict.fromkeys(one for grant in granted for one in grant["operations"]))
        if not named:
            raise Failure(f"the contract of {work_item_name(item)} allows no operation that could be permitted")
        expires_at, owner = now().plus(lasting).text(), item["owner"]
        used = read_log(node, view["mission"]["groupId"]).used
        shown = {
            "Mission": mission_title(view["mission"]),
            "Work": f"{work_item_name(item)} ({item['workItemId']})",
            "Goal": item["contract"]["goal"],
            "Revision": f"{item['revision']} (contract version {item['contract']['contractVersion']})",
            "Budget used": budget_used(item["contract"]["budget"], used.get(item["workItemId"], {})),
            "Risk": item["contract"]["sideEffectRisk"],
            "Owner": f"{owner['agentId']} (epoch {owner['ownershipEpoch']})",
            "Operations": [f"{', '.join(one['operations'])} on {one['resource']}" for one in granted],
            "Until": expires_at,
        }
        sign_exactly(target, facts(shown), "Permit exactly this?", consent, item["revision"])
        occurred_at, mission = now().text(), view["mission"]
        document = {
            "approvalId": new_id(),
            "kind": "work_execution",
            "decision": "approved",
            "missionId": mission["missionId"],
            "groupId": mission["groupId"],
            "workItemId": item["workItemId"],
            "missionRevision": mission["revision"],
            "artifactHashes": [],
            "acceptancePolicyVersion": mission["approvalPolicy"].get("policyVersion", "1.0.0"),
            "approver": principal(key),
            "comments": comment,
            "conditions": [
                *(f"operation:{one}" for one in named),
                *(f"resource:{one['resource']}#{','.join(one['operations'])}" for one in granted),
                f"ownershipEpoch:{owner['ownershipEpoch']}",
                f"expiresAt:{expires_at}",
            ],
            "occurredAt": occurred_at,
        }
        payload = {
            "approval": sign_mapping(document, key, occurred_at),
            "ownershipEpoch": owner["ownershipEpoch"],
            "operations": named,
            "resources": granted,
            "expiresAt": expires_at,
        }
        act(node, key, view, "approval.grant_execution", payload)
    answer = {
        "approvalId": document["approvalId"],
        "workItemId": item["workItemId"],
        "ownershipEpoch": owner["ownershipEpoch"],
        "operations": named,
        "expiresAt": expires_at,
    }
    emit(target.as_json, answer, f"permitted: {document['approvalId']}")


def _narrowed(wanted: list[dict[str, Any]], operations: tuple[str, ...]) -> list[dict[str, Any]]:
    """The resource grants of a contract, less every operation that is not among those given."""
    allowed = {one for grant in wanted for one in grant["operations"]}
    unknown = [one for one in operations if one not in allowed]
    if unknown:
        raise Failure(f"the contract does not allow {unknown[0]}; it allows {', '.join(sorted(allowed)) or 'nothing'}")
    found = []
    for grant in wanted:
        kept = [one for one in grant["operations"] if not operations or one in operations]
        if kept:
            found.append({"resource": grant["resource"], "operations": kept})
    return found


@click.command()
@click.argument("name", metavar="ID")
@click.argument("work", metavar="WORK")
@click.option(
    "--criterion", "criteria", multiple=True, metavar="ID", help="Repeatable; default: all with human_review."
)
@click.option("--passed/--failed", "passed", default=None, help="Whether they are met; one of them must be said.")
@click.option("--comment", default="", help="What you looked at, and why; signed with the Evidence.")
@consent_options
@at_node
def review(
    target: Target,
    name: str,
    work: str,
    criteria: tuple[str, ...],
    passed: bool | None,
    comment: str,
    consent: Consent,
) -> None:
    """Say whether a submitted WorkItem meets criteria that a human is to judge; signs Evidence for the Coordinator.

    Shows the contract, the Artifacts, the Evidence so far and the budget used, and asks first. Without a terminal
    --yes must say so, or --revision the revision that you have looked at.
    """
    if passed is None:
        raise click.UsageError("say --passed or --failed")
    key = human_key(target, "reviewing")
    with reach(target, key) as node:
        view = find_mission(node, name)
        item = find_work(view, work)
        if item["state"] != "submitted":
            raise Failure(f"{work_item_name(item)} is {item['state']}: only what was submitted is reviewed")
        kinds = _judged(item, criteria)
        judged, result = sorted({one for names in kinds.values() for one in names}), "passed" if passed else "failed"
        log = read_log(node, view["mission"]["groupId"])
        shown = [*work_shown(view, item, log, judged), f"You say: {', '.join(judged)} {result}. {comment}".rstrip()]
        sign_exactly(target, shown, "Sign exactly this?", consent, item["revision"])
        created_at, mission = now().text(), view["mission"]
        documents = [
            {
                "evidenceId": new_id(),
                "missionId": mission["missionId"],
                "groupId": mission["groupId"],
                "workItemId": item["workItemId"],
                "type": kind,
                "subject": {"type": "work_item", "id": item["workItemId"]},
                "criterionIds": names,
                "method": comment or "looked at by a human",
                "result": result,
                "artifactHashes": item["submission"]["artifactHashes"],
                "generatedBy": principal(key),
                "createdAt": created_at,
            }
            for kind, names in kinds.items()
        ]
        said = f"{work_item_name(item)}: {', '.join(judged)} {result}. {comment}".strip()
        signed = [sign_mapping(document, key, created_at) for document in documents]
        _tell(node, key, view, said, *({"type": "data_ref", "schema": EVIDENCE_SCHEMA, "data": one} for one in signed))
    names = ("evidenceId", "type", "criterionIds")
    answer = {
        "evidenceId": documents[0]["evidenceId"],
        "workItemId": item["workItemId"],
        "criterionIds": judged,
        "result": result,
        "evidence": [{name: document[name] for name in names} for document in documents],
    }
    emit(target.as_json, answer, f"reviewed: {result}")


def _judged(item: dict[str, Any], criteria: tuple[str, ...]) -> dict[str, list[str]]:
    """Kinds of Evidence to be given, each with its criteria: those named, otherwise all that are a human's to judge.

    A human who is asked for it also says what reviewer Agents could not (R-13.2-05).
    """
    wanted = {
        one["criterionId"]: sorted(BY_OTHERS.intersection(one["evidenceRequired"]))
        for one in item["contract"]["acceptanceCriteria"]
    }
    wanted = {name: kinds for name, kinds in wanted.items() if kinds}
    own = [name for name, kinds in wanted.items() if BY_HUMAN in kinds]
    unknown = [one for one in criteria if one not in wanted]
    if unknown or not (criteria or own):
        what = f"{unknown[0]!r} is no criterion" if unknown else "nothing"
        named = sorted(set(wanted) - set(own))
        besides = f"; besides, named by --criterion, what reviewers judge: {', '.join(named)}" if named else ""
        raise Failure(f"{what} that a human judges here; those are: {', '.join(sorted(own)) or 'none'}{besides}")
    found: dict[str, list[str]] = {}
    for name in sorted(set(criteria)) or sorted(own):
        for kind in wanted[name] if criteria else (BY_HUMAN,):
            found.setdefault(kind, []).append(name)
    return found


def _tell(node: Reach, key: SigningKey, view: dict[str, Any], text: str, *blocks: dict[str, Any]) -> str:
    """Say something to the Coordinator in a form that it can act upon; the Message's identifier."""
    payload = {
        "messageId": new_id(),
        "conversationId": mission_conversation_id(view["mission"]["groupId"]),
        "content": [{"type": "text", "text": text}, *blocks],
        "mentions": [{"type": "agent", "id": view["mission"]["coordinator"]["agentId"]}],
        "announcement": True,
    }
    act(node, key, view, "message.post", payload)
    return str(payload["messageId"])


@click.command()
@click.argument("name", metavar="ID")
@click.argument("work", metavar="WORK")
@click.option("--limit", "limits", multiple=True, metavar="NAME=N", help="Under another budget; repeatable, all of it.")
@click.option("--currency", metavar="CODE", help="Of financialLimit.")
@click.option("--comment", default="", help="What is different now.")
@at_node
def retry(target: Target, name: str, work: str, limits: tuple[str, ...], currency: str | None, comment: str) -> None:
    """Ask the Coordinator to have failed or blocked work tried again, from its last checkpoint on."""
    key = target.key("owner")
    with reach(target, key) as node:
        view = find_mission(node, name)
        item = find_work(view, work)
        if item["state"] not in ("failed", "blocked"):
            raise Failure(f"{work_item_name(item)} is {item['state']}: only failed or blocked work is tried again")
        child = _running_child(node, item)
        if child is not None:
            raise Failure(f"{work_item_name(item)} is done by a child Mission, which goes on: {_where_stuck(child)}")
        asked, through = _whom_to_ask(node, view, key)
        data: dict[str, Any] = {"workItemId": item["workItemId"]}
        if through:
            data["through"] = through
        if limits:
            data["budget"] = _limits(limits, currency)
        said = f"Please try {work_item_name(item)} again. {comment}".strip()
        message_id = _tell(node, key, asked, said, {"type": "data_ref", "schema": RETRY_SCHEMA, "data": data})
    passed = f", by way of {mission_title(asked['mission'])}, whose Coordinator passes it on" if through else ""
    emit(target.as_json, {"messageId": message_id, **data}, f"asked: {message_id}{passed}")


def _running_child(node: Reach, item: dict[str, Any]) -> dict[str, Any] | None:
    """The view of the child Mission that does a WorkItem, while that one is not over."""
    links = core_data(item)
    if "childMissionId" not in links:
        return None
    view = found(node, at("missions", links["childMissionId"]))
    return view if view is not None and view["mission"]["state"] in ("active", "awaiting_approval") else None


def _where_stuck(child: dict[str, Any]) -> str:
    """What can be done about a child Mission, in words of the command line."""
    short = short_id(child["mission"]["missionId"])
    stuck = [work_item_name(one) for one in child["workItems"] if one["state"] in ("failed", "blocked")]
    if child["mission"]["state"] == "active" and stuck:
        return f"`mwnode mission retry {short} {stuck[0]}` has what is {' and '.join(stuck)} there tried again"
    return f"`mwnode why {short}` tells what it waits for"


def _whom_to_ask(node: Reach, view: dict[str, Any], key: SigningKey) -> tuple[dict[str, Any], list[str]]:
    """The Mission whose Coordinator heeds this human, and the children below it by which a wish reaches this one.

    A child Mission's owner is the Coordinator above it: the human at the root asks there.
    """
    through: list[str] = []
    while view["mission"]["missionOwner"] != principal(key) and "parent" in view["mission"]:
        through.insert(0, view["mission"]["missionId"])
        above = found(node, at("missions", view["mission"]["parent"]["missionId"]))
        if above is None:
            raise Failure(
                f"{mission_title(view['mission'])} is part of a Mission that this key cannot see: act as the human who "
                "owns the outermost one, by --key"
            )
        view = above
    return view, through


@click.command()
@click.argument("name", metavar="ID")
@click.argument("limits", nargs=-1, required=True, metavar="NAME=N...")
@click.option("--currency", metavar="CODE", help="Of financialLimit.")
@click.option("--reason", default="amended by its MissionOwner", show_default=True)
@at_node
def budget(target: Target, name: str, limits: tuple[str, ...], currency: str | None, reason: str) -> None:
    """Give a Mission another budget. Limits that are not named stay; none goes below what is used or given away."""
    key = target.key("owner")
    with reach(target, key) as node:
        view = find_mission(node, name)
        whole = {**view["mission"]["budget"], **_limits(limits, currency)}
        receipt = act(node, key, view, f"{CORE}.budget_amend", {"budget": whole, "reason": reason})
    told(target, view, receipt)


@click.command()
@click.argument("name", metavar="ID")
@click.argument("level", metavar="LEVEL", type=click.Choice(get_args(Priority)))
@click.option("--reason", default="as its MissionOwner says", show_default=True)
@at_node
def priority(target: Target, name: str, level: str, reason: str) -> None:
    """Say how pressing a Mission is to the Organization. Workers order what waits by it at once."""
    key = human_key(target, "setting a priority")
    with reach(target, key) as node:
        view = find_mission(node, name)
        payload = {"priority": level, "reason": reason}
        receipt = act(node, key, view, f"{CORE}.mission_prioritize", payload)
    told(target, view, receipt)


VERBS = (permit, review, retry, budget, priority)
