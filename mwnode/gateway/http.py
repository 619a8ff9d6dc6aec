"""HTTP beside the WebSocket: Commands, sessions, the Registry, tokens, health; and the table of all routes. Shell.

The same authority and the same errors as on the WebSocket. Commands need no bearer: the signature is the credential
(decision B7). Identifiers of what the caller may not see are answered like those of nothing at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
from aiohttp import web

from mwnode.authority import tokens, views
from mwnode.authority.performance import Performance, performance_of
from mwnode.authority.state import AGENTS
from mwnode.authority.view import View
from mwnode.gateway.artifacts import ArtifactPages
from mwnode.gateway.budget import ACCEPTED_SECONDS, COMMAND_SECONDS, REFUSED_SECONDS
from mwnode.gateway.engine import BACKPRESSURE_MS, action_id_of
from mwnode.gateway.history import History
from mwnode.gateway.hub import Hub
from mwnode.gateway.metrics import Metrics
from mwnode.gateway.ports import Origin
from mwnode.gateway.web import NOT_FOUND, Refusal, Web, answers_of, json_response, raw_json, refuse
from mwnode.protocol.documents import Actor, Document
from mwnode.protocol.errors import ErrorCode, Rejection
from mwnode.protocol.scalars import Id
from mwnode.store.batch import Accepted
from mwnode.store.port import ReadTransaction
from mwnode.trust.verification import Failure

Issue = Callable[[View, tokens.Issuer, Actor, int], tokens.Claims | Rejection]
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class ChallengeQuestion(Document):
    """Body of ``POST /v0.1/sessions/challenge``."""

    principal: Actor
    key_id: Id


class SessionQuestion(Document):
    """Body of ``POST /v0.1/sessions``: the challenge and the signature over its decoded bytes, both base64url."""

    challenge: str
    signature: str


class TokenQuestion(Document):
    """Body of ``POST /v0.1/tokens/verify``."""

    token: str


class _Sent(msgspec.Struct):
    actor: Actor


_SENT = msgspec.json.Decoder(_Sent)


class Pages:
    """Handlers that are about neither Groups nor Artifacts."""

    def __init__(self, web_tools: Web, metrics: Metrics) -> None:
        self._web = web_tools
        self._metrics = metrics

    # --- Commands ---

    async def command(self, request: web.Request) -> web.StreamResponse:
        """``POST /v0.1/commands``: one signed Command; its Events, receipt first, also for a retry (A13, A28)."""
        limit = self._web.authority.limits.frame_bytes
        raw = await self._web.body(request, limit, f"a Command has at most {limit} bytes")
        if self._web.hub.stopping:
            raise Refusal(
                Rejection(ErrorCode.BACKPRESSURE, "the node is stopping", "R-19-32", retry_after_ms=BACKPRESSURE_MS)
            )
        bearer = self._web.bearer_if_any(request)
        origin = Origin(
            transport="http",
            bearer=bearer.principal if bearer is not None else None,
            key_id=bearer.key_id if bearer is not None else None,
        )
        self._web.spent(request, COMMAND_SECONDS)
        outcome = await self._submit(raw, origin)
        if isinstance(outcome, Accepted):
            if not outcome.duplicate:
                # A signature that was seen before proves nothing about who sends it now.
                self._web.know(request, _SENT.decode(raw).actor)
                self._web.spent(request, -ACCEPTED_SECONDS)
            if outcome.record is None:
                return raw_json(b'{"events":[%b]}' % b",".join(outcome.events))
            self._web.hub.registry_changed()
            return raw_json(b'{"events":[%b],"record":%b}' % (b",".join(outcome.events), outcome.record))
        self._web.spent(request, REFUSED_SECONDS)
        rejection = outcome.rejection() if isinstance(outcome, Failure) else outcome
        raise Refusal(rejection, related_action_id=action_id_of(raw))

    async def _submit(self, raw: bytes, origin: Origin) -> Accepted | Rejection | Failure:
        hub = self._web.hub
        answer: asyncio.Future[Accepted | Rejection | Failure] = asyncio.get_running_loop().create_future()

        def reply(outcome: Accepted | Rejection | Failure) -> None:
            hub.post(lambda: None if answer.done() else answer.set_result(outcome))

        self._web.authority.submit(raw, origin, reply)
        outcome = await answer
        if isinstance(outcome, Accepted):
            hub.on_command("http", raw, "duplicate" if outcome.duplicate else "accepted")
        else:
            hub.on_command("http", raw, outcome.code.value)
        return outcome

    # --- sessions and tokens ---

    async def challenge(self, request: web.Request) -> web.StreamResponse:
        """``POST /v0.1/sessions/challenge``."""
        question = await self._web.question(request, ChallengeQuestion)
        return json_response(self._web.hub.sessions.challenge(question.principal, question.key_id))

    async def session(self, request: web.Request) -> web.StreamResponse:
        """``POST /v0.1/sessions``: a bearer token; it opens no Session Epoch (decision B6)."""
        question = await self._web.question(request, SessionQuestion)
        opened = self._web.hub.sessions.open(question.challenge, question.signature)
        if isinstance(opened, Rejection):
            raise Refusal(opened)
        return json_response(opened)

    async def capability_token(self, request: web.Request) -> web.StreamResponse:
        """``POST /v0.1/tokens/capability``: what a tool may be asked to do under a lease (R-12-01, decision B2)."""
        asked = await self._web.question(request, tokens.CapabilityRequest)
        return await self._token(
            request, lambda view, issuer, who, epoch: tokens.issue_capability(view, issuer, who, epoch, asked)
        )

    async def membership_token(self, request: web.Request) -> web.StreamResponse:
        """``POST /v0.1/tokens/membership``: proves a Membership to others, offline (R-G-04, decision B2)."""
        asked = await self._web.question(request, tokens.MembershipRequest)
        return await self._token(
            request, lambda view, issuer, who, epoch: tokens.issue_membership(view, issuer, who, epoch, asked)
        )

    async def _token(self, request: web.Request, issue: Issue) -> web.StreamResponse:
        bearer = self._web.bearer(request)
        authority = self._web.authority
        issuer = tokens.Issuer(authority.clock.now(), authority.policy, self._web.hub.replies.new_id)

        def read(view: ReadTransaction) -> tokens.Claims | Rejection:
            epoch = bearer.session_epoch
            if epoch is None:
                # A token obtained over HTTP opens no Session (decision B6): it acts under the Agent's newest one.
                row = view.get(AGENTS, bearer.principal.id) if bearer.principal.type == "agent" else None
                epoch = row.session_epoch if row is not None else 0
            return issue(view, issuer, bearer.principal, epoch)

        issued = await self._web.read(read)
        if isinstance(issued, Rejection):
            raise Refusal(issued)
        claims = msgspec.to_builtins(issued)
        return json_response(
            {"token": authority.tokens.issue(claims), "claims": claims, "expiresAt": issued.expires_at}
        )

    async def verify_token(self, request: web.Request) -> web.StreamResponse:
        """``POST /v0.1/tokens/verify``: whether a token still holds (decision F19). Whoever holds it may ask."""
        question = await self._web.question(request, TokenQuestion)
        stated = self._web.authority.tokens.claims(question.token)
        claims = tokens.read(stated) if stated is not None else None
        now = self._web.authority.clock.now()
        if claims is None or not await self._web.read(lambda view: tokens.stands(view, now, claims)):
            return json_response({"valid": False})
        return json_response({"valid": True, "claims": claims})

    # --- the Organization ---

    async def registry(self, request: web.Request) -> web.StreamResponse:
        """``GET /v0.1/registry``: one revision of all bindings, in the form of the bundle's fixtures (A23)."""
        self._web.bearer(request)
        return json_response(self._web.authority.registry.export())

    async def agents(self, request: web.Request) -> web.StreamResponse:
        """``GET /v0.1/agents``: the current Card of every Agent."""
        self._web.bearer(request)
        rows = await self._web.read(lambda view: view.all(AGENTS))
        return json_response({"agents": [row.card for row in rows]})

    async def agent(self, request: web.Request) -> web.StreamResponse:
        """``GET /v0.1/agents/{id}``: the current Card, as it was signed (A23, A43)."""
        self._web.bearer(request)
        row = await self._web.read(lambda view: view.get(AGENTS, request.match_info["agent_id"]))
        if row is None:
            raise Refusal(NOT_FOUND)
        return json_response(row.card)

    async def performance(self, request: web.Request) -> web.StreamResponse:
        """``GET /v0.1/agents/{id}/performance``: how its work went, as far as the caller sees the Groups (R-6.1-10)."""
        principal, agent_id = self._web.bearer(request).principal, request.match_info["agent_id"]
        now = self._web.authority.clock.now()

        def read(view: ReadTransaction) -> list[Performance] | None:
            if view.get(AGENTS, agent_id) is None:
                return None
            sights = [sight for _, sight in views.missions_of(view, principal, now)]
            return performance_of(view, sights, agent_id)

        found = await self._web.read(read)
        if found is None:
            raise Refusal(NOT_FOUND)
        return json_response({"agentId": agent_id, "performance": found})

    async def presence(self, request: web.Request) -> web.StreamResponse:
        """``GET /v0.1/presence``: what is known of this moment; transient (R-6.2-01, decision C12)."""
        self._web.bearer(request)
        return json_response({"presence": list(self._web.hub.presence.values())})

    async def own_session(self, request: web.Request) -> web.StreamResponse:
        """``GET /v0.1/sessions``: the Agent's newest Session Epoch, and who holds it (R-6.3-06)."""
        principal = self._web.bearer(request).principal
        if principal.type != "agent":
            raise refuse(ErrorCode.AUTH_FORBIDDEN, "only Agents have Session Epochs", "R-19-14")
        return json_response({"agentId": principal.id} | self._web.hub.session_of(principal.id))

    async def cursors(self, request: web.Request) -> web.StreamResponse:
        """``GET /v0.1/cursors``: the Agent's durable Cursors (decision A9)."""
        principal = self._web.bearer(request).principal
        if principal.type != "agent":
            raise refuse(ErrorCode.AUTH_FORBIDDEN, "only Agents have Cursors", "R-19-14")
        kept = await self._web.read(lambda view: view.cursors(principal.id))
        return json_response({"cursors": [{"groupId": group_id, "sequence": sequence} for group_id, sequence in kept]})

    # --- operation ---

    async def health(self, request: web.Request) -> web.StreamResponse:
        """``GET /healthz``: the process answers."""
        return json_response({"status": "ok"})

    async def ready(self, request: web.Request) -> web.StreamResponse:
        """``GET /readyz``: the store answers too, and the node is not stopping."""
        if self._web.hub.stopping:
            return json_response({"status": "stopping"}, 503)
        await self._web.read(lambda view: view.next_due())
        return json_response({"status": "ok"})

    async def metrics(self, request: web.Request) -> web.StreamResponse:
        """``GET /metrics``."""
        await self._web.in_thread(self._metrics.look_at_file)
        return web.Response(body=self._metrics.text(), headers={"Content-Type": METRICS_TYPE})


def add_routes(app: web.Application, hub: Hub, metrics: Metrics) -> Web:
    """Put the whole HTTP surface into an application; the tools that its handlers share."""
    tools = Web(hub)
    app.middlewares.append(answers_of(tools))
    pages, history, artifacts = Pages(tools, metrics), History(tools), ArtifactPages(tools)
    for method, path, handler in (
        ("POST", "/v0.1/commands", pages.command),
        ("POST", "/v0.1/sessions/challenge", pages.challenge),
        ("POST", "/v0.1/sessions", pages.session),
        ("POST", "/v0.1/tokens/capability", pages.capability_token),
        ("POST", "/v0.1/tokens/membership", pages.membership_token),
        ("POST", "/v0.1/tokens/verify", pages.verify_token),
        ("GET", "/v0.1/missions", history.missions),
        ("GET", "/v0.1/missions/{mission_id}", history.mission),
        ("GET", "/v0.1/waiting", history.waiting),
        ("GET", "/v0.1/why", history.why),
        ("GET", "/v0.1/groups/{group_id}/events", history.events),
        ("GET", "/v0.1/groups/{group_id}/events/{sequence}", history.event),
        ("GET", "/v0.1/groups/{group_id}/policy-log", history.policy_log),
        ("GET", "/v0.1/groups/{group_id}/snapshots", history.snapshots),
        ("GET", "/v0.1/organization/events", history.organization_events),
        ("GET", "/v0.1/context-packages/{package_id}", history.context_package),
        ("PUT", "/v0.1/artifacts", artifacts.put),
        ("GET", "/v0.1/artifacts/{content_hash}", artifacts.get),
        ("GET", "/v0.1/uploads", artifacts.uploads),
        ("GET", "/v0.1/artifacts/{content_hash}/manifests", artifacts.manifests),
        ("GET", "/v0.1/artifacts/{content_hash}/provenance", artifacts.provenance),
        ("GET", "/v0.1/registry", pages.registry),
        ("GET", "/v0.1/agents", pages.agents),
        ("GET", "/v0.1/agents/{agent_id}", pages.agent),
        ("GET", "/v0.1/agents/{agent_id}/performance", pages.performance),
        ("GET", "/v0.1/presence", pages.presence),
        ("GET", "/v0.1/sessions", pages.own_session),
        ("GET", "/v0.1/cursors", pages.cursors),
        ("GET", "/healthz", pages.health),
        ("GET", "/readyz", pages.ready),
        ("GET", "/metrics", pages.metrics),
    ):
        app.router.add_route(method, path, tools.guarded(handler))
        if method == "GET":
            app.router.add_route("HEAD", path, tools.guarded(handler))

    async def close(_: web.Application) -> None:
        tools.close()

    app.on_cleanup.append(close)
    return tools
