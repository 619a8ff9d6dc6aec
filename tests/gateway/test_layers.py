"""Workload identity under the handshake, and Cursors that go on by themselves."""

from __future__ import annotations

import asyncio
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiohttp
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from mwnode.gateway.server import serve, server_tls
from mwnode.testing import Harness
from tests.gateway.conftest import Served
from tests.gateway.test_server import Tls, tls
from tests.gateway.wire import Wire

__all__ = ["tls"]


def workload(directory: Path) -> tuple[Path, Path]:
    """A CA for workloads, and a certificate of one; the latter's file holds its key too."""
    now = datetime.now(UTC)
    ca_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    ca_name, name = (x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)]) for text in ("workloads", "worker"))

    def certificate(subject: x509.Name, of: ec.EllipticCurvePrivateKey, is_ca: bool) -> x509.Certificate:
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(ca_name)
            .public_key(of.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
        )
        return builder.sign(ca_key, hashes.SHA256())

    pem = serialization.Encoding.PEM
    ca, own = directory / "workloads.pem", directory / "worker.pem"
    ca.write_bytes(certificate(ca_name, ca_key, True).public_bytes(pem))
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    own.write_bytes(certificate(name, key, False).public_bytes(pem) + private)
    return ca, own


@pytest.mark.req("R-6.3-09", "R-6.3-06")
async def test_client_certificates_are_a_layer_below_and_change_nothing_above(
    mwnode: Harness, tls: Tls, tmp_path: Path
) -> None:
    ca, own = workload(tmp_path)
    server = await serve(mwnode.node, tls=server_tls(tls.certificate, tls.key, client_ca=ca))
    wires: list[Wire] = []
    try:
        with_one, without = (ssl.create_default_context(cafile=str(tls.ca)) for _ in range(2))
        with_one.load_cert_chain(own)
        with pytest.raises((aiohttp.ClientError, ConnectionError, ssl.SSLError)):
            wires.append(await Wire.dial(server.url, ssl=without))
        worker = mwnode.workers[0]
        before = worker.session_epoch
        for number in (1, 2):
            wires.append(await Wire.dial(server.url, ssl=with_one))
            accept = await wires[-1].hello(worker)
            assert accept["sessionEpoch"] == before + number
        # The newer session fences the older one, as without certificates.
        await wires[0].send(wires[0].frame("PING", nonce="bm9uY2U", sentAt="2030-01-01T00:00:00Z"))
        assert (await wires[0].error())["code"] == "AUTH_STALE_SESSION"
        # A certificate is no identity of the protocol: the key still has to be proven.
        wires.append(await Wire.dial(server.url, ssl=with_one))
        await wires[-1].send(wires[-1].client_init(worker))
        challenge = await wires[-1].receive()
        await wires[-1].send(wires[-1].client_response(mwnode.workers[1], challenge))
        assert (await wires[-1].error())["code"].startswith(("AUTH_", "PROTOCOL_"))
    finally:
        for wire in wires:
            await wire.close()
        await server.close()


@pytest.mark.req("R-8-25")
async def test_each_subscription_has_a_cursor_of_its_own(served: Served) -> None:
    harness = served.harness
    one, other = harness.mission(), harness.mission()
    for mission in (one, other):
        for number in range(5):
            mission.post(harness.owner, f"{number}")
    wire = await served.agent(harness.coordinator)
    await wire.send(
        wire.frame(
            "SUBSCRIBE",
            subscriptionId="urn:test:both",
            groups=[
                {"groupId": one.group_id, "afterSequence": 2},
                {"groupId": other.group_id, "afterSequence": 5},
            ],
        )
    )
    events = [frame["event"] for frame in await wire.until_mark("urn:test:both")]
    seen = {each: [event["sequence"] for event in events if event["groupId"] == each.group_id] for each in (one, other)}
    assert seen == {one: [3, 4, 5, 6], other: [6]}
    await wire.ack({one.group_id: 4, other.group_id: 6})
    # Each goes on from where it was, whatever the other one does.
    again = await served.agent(harness.coordinator)
    http = served.http(harness.coordinator)
    http.use_token(again.token)
    kept = {
        entry["groupId"]: entry["sequence"] for entry in (await asyncio.to_thread(http.get, "/v0.1/cursors"))["cursors"]
    }
    assert kept == {one.group_id: 4, other.group_id: 6}
    assert [event["sequence"] for event in await again.follow(one.group_id, after=kept[one.group_id])] == [5, 6]
    assert await again.follow(other.group_id, after=kept[other.group_id]) == []
