"""`mwnode mission override`: let a Coordinator pass a limit of policy, once, for the Command that it asked for."""

from __future__ import annotations

from typing import Any

import click

from mwnode.cli.asking import Consent, sign_exactly
from mwnode.cli.compose import new_id, now, principal
from mwnode.cli.deciding import consent_options
from mwnode.cli.failure import Failure
from mwnode.cli.missions import act, events_of, find_mission, told
from mwnode.cli.output import facts
from mwnode.cli.principals import human_key
from mwnode.cli.reach import Reach, reach
from mwnode.cli.target import Target, at_node, read_key
from mwnode.narrative import mission_title
from mwnode.protocol.identifiers import OVERRIDE_SCHEMA
from mwnode.protocol.instants import parse, parse_duration
from mwnode.trust.keys import SigningKey


@click.command()
@click.argument("name", metavar="ID")
@click.option("--for", "seconds", default="PT1H", show_default=True, metavar="DURATION", help="How long it is good.")
@consent_options
@at_node
def override(target: Target, name: str, seconds: str, consent: Consent) -> None:
    """Let the Coordinator pass the limit that its oldest open request names: once, for exactly that Command.

    In a child Mission, whose owner is an Agent, this is the Organization's to grant: with the key of HOME.
    """
    key = human_key(target, "granting an override")
    try:
        lasting = int(parse_duration(seconds))
    except ValueError as error:
        raise click.UsageError(f"--for: {error}") from None
    with reach(target, key) as node:
        view = find_mission(node, name)
        mission = view["mission"]
        asked = _oldest_request(node, view)
        signer = key if mission["missionOwner"] == principal(key) else _organization(target, view)
        expires_at = min(now().plus(lasting).text(), mission["deadline"], key=parse)
        payload: dict[str, Any] = {
            "grantId": new_id(),
            "policyName": asked["policyName"],
            "beneficiary": {"type": "agent", "id": mission["coordinator"]["agentId"]},
            "targetCommandKind": asked["targetCommandKind"],
            "targetActionId": asked["targetActionId"],
            "reason": asked["reason"],
            "expiresAt": expires_at,
        }
        shown = {
            "Mission": mission_title(mission),
            "Asked": asked["reason"],
            "Limit": asked["policyName"],
            "Command": f"{asked['targetCommandKind']} ({asked['targetActionId']})",
            "For": payload["beneficiary"]["id"],
            "By": signer.principal.id,
            "Until": expires_at,
        }
        sign_exactly(target, facts(shown), "Let exactly this pass?", consent, mission["revision"])
    # It may be another key that signs, and that one sends it too.
    with reach(target, signer) as node:
        receipt = act(node, signer, view, "policy.grant_cooperation_override", payload)
    told(target, view, receipt)


def _organization(target: Target, view: dict[str, Any]) -> SigningKey:
    """The Organization's key, for a Mission that somebody else owns; Failure where HOME has none."""
    path = target.home.key_path("organization")
    if not path.exists():
        owner = view["mission"]["missionOwner"]
        raise Failure(
            f"{mission_title(view['mission'])} is owned by {owner['type']} {owner['id']}: only that one and the "
            f"Organization may grant this, and there is no key file {path}"
        )
    return read_key(path)


def _oldest_request(node: Reach, view: dict[str, Any]) -> dict[str, Any]:
    """What the Coordinator asked for first and has neither got nor done; Failure when there is nothing."""
    coordinator = view["mission"]["coordinator"]["agentId"]
    asked: dict[str, dict[str, Any]] = {}
    for event in events_of(node, view["mission"]["groupId"]):
        payload = event["payload"]
        if event["kind"] == "message.posted" and payload["message"]["author"]["id"] == coordinator:
            for block in payload["message"]["content"]:
                if block.get("schema") == OVERRIDE_SCHEMA:
                    asked[block["data"]["targetActionId"]] = block["data"]
        elif event["kind"] == "policy.cooperation_override.granted":
            grant = payload["cooperationOverrideGrant"]
            if parse(grant["expiresAt"]) > now():
                asked.pop(grant["targetActionId"], None)
    if not asked:
        raise Failure(
            f"the Coordinator of {mission_title(view['mission'])} has asked for no override that is still open; "
            "`mwnode waiting` lists what waits for you"
        )
    return next(iter(asked.values()))
