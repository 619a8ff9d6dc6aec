"""Key files: in the clear or sealed, and never a secret in a text."""

from __future__ import annotations

import json
import pickle
import traceback
from typing import Any

import pytest
from nacl import pwhash

from mwnode.protocol.documents import Actor
from mwnode.trust import ed25519, keys
from mwnode.trust.keys import KeyFault, SigningKey
from tests.trust.makers import AGENT, ORGANIZATION

SEED = bytes([1]) * 32
PASSPHRASE = "correct horse 電池".encode()
# The least that Argon2id takes; real files use its moderate cost.
CHEAP = {"operations": 1, "memory_bytes": 8192}


class Counting:
    """Entropy that repeats itself from run to run, and never within one."""

    def __init__(self) -> None:
        self._count = 0

    def random(self, n: int) -> bytes:
        self._count += 1
        return self._count.to_bytes(n, "big")


def sealed() -> bytes:
    return keys.dump(AGENT, PASSPHRASE, entropy=Counting(), **CHEAP)


def test_a_plain_file_has_the_documented_members_and_loads() -> None:
    document = json.loads(keys.dump(AGENT))
    assert document == {
        "keyId": AGENT.key_id,
        "principal": {"type": "agent", "id": AGENT.principal.id},
        "algorithm": "Ed25519",
        "publicKey": AGENT.public_key,
        "organizationId": ORGANIZATION,
        "seed": ed25519.encode_base64url(SEED),
    }
    loaded = keys.load(keys.dump(AGENT))
    assert (loaded.key_id, loaded.principal, loaded.organization_id) == (AGENT.key_id, AGENT.principal, ORGANIZATION)
    assert loaded.sign(b"x") == AGENT.sign(b"x")
    assert not keys.is_sealed(keys.dump(AGENT))


def test_a_sealed_file_opens_with_its_passphrase_only() -> None:
    data = sealed()
    assert keys.is_sealed(data)
    assert b'"seed"' not in data
    assert keys.load(data, PASSPHRASE).sign(b"x") == AGENT.sign(b"x")
    for passphrase, words in ((None, "give its passphrase"), (b"wrong", "does not open"), (b"", "does not open")):
        with pytest.raises(KeyFault, match=words):
            keys.load(data, passphrase)


def test_the_default_cost_is_argon2ids_moderate_one() -> None:
    document = json.loads(keys.dump(AGENT, PASSPHRASE, entropy=Counting()))
    assert document["sealed"]["kdf"] == "argon2id"
    assert document["sealed"]["memoryBytes"] == pwhash.argon2id.MEMLIMIT_MODERATE
    assert document["sealed"]["operations"] == pwhash.argon2id.OPSLIMIT_MODERATE


def test_sealing_needs_a_passphrase_and_entropy() -> None:
    with pytest.raises(KeyFault, match="empty passphrase"):
        keys.dump(AGENT, b"", entropy=Counting())
    with pytest.raises(ValueError, match="entropy"):
        keys.dump(AGENT, PASSPHRASE)


def spoiled(**changes: Any) -> bytes:
    document = {**json.loads(keys.dump(AGENT)), **changes}
    return json.dumps({name: value for name, value in document.items() if value is not None}).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        spoiled(keyId="no-uri"),
        spoiled(algorithm="RSA"),
        spoiled(seed=None),
        spoiled(seed="AAAA"),
        spoiled(seed="!" * 43),
        spoiled(extra=1),
        spoiled(principal={"type": "robot", "id": "urn:x:1"}),
        spoiled(publicKey=ed25519.encode_base64url(bytes(32))),
    ],
)
def test_a_file_that_is_no_key_file_is_refused_without_quoting_it(data: bytes) -> None:
    with pytest.raises(KeyFault) as caught:
        keys.load(data)
    assert ed25519.encode_base64url(SEED) not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    "change",
    [
        {"kdf": "scrypt"},
        {"operations": 0},
        {"operations": 10**6},
        {"memoryBytes": 2**40},
        {"memoryBytes": 1},
        {"salt": "AA"},
        {"nonce": "AA"},
        {"salt": "!"},
    ],
)
def test_an_unknown_or_ruinous_sealing_is_refused(change: dict[str, Any]) -> None:
    document = json.loads(sealed())
    document["sealed"].update(change)
    with pytest.raises(KeyFault):
        keys.load(json.dumps(document).encode(), PASSPHRASE)


def test_no_text_of_a_key_holds_its_secret() -> None:
    secrets = (ed25519.encode_base64url(SEED), repr(SEED), SEED.hex())
    key = keys.load(keys.dump(AGENT))
    for text in (
        repr(key),
        str(key),
        f"{key}",
        repr(
            keys.KeyFile(
                key_id=AGENT.key_id,
                principal=AGENT.principal,
                algorithm="Ed25519",
                public_key=AGENT.public_key,
                seed=secrets[0],
            )
        ),
    ):
        assert not any(secret in text for secret in secrets)
        assert AGENT.key_id in text
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(key)


def test_a_seed_has_32_bytes() -> None:
    with pytest.raises(KeyFault, match="32 bytes"):
        SigningKey("urn:example:key:1", Actor(type="agent", id="urn:example:agent:1"), ORGANIZATION, b"short")
