"""Private keys: one small JSON file each, in the clear or sealed by a passphrase.

Bytes in and bytes out; reading and writing files is for others. No ``repr`` and no error text holds a secret.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, Struct, UnsetType
from nacl import pwhash
from nacl.exceptions import CryptoError
from nacl.secret import SecretBox

from mwnode.protocol import jcs, strict_json
from mwnode.protocol.documents import Actor, Document, Signature
from mwnode.protocol.ports import Entropy
from mwnode.protocol.scalars import Id
from mwnode.protocol.strict_json import JsonFault, SchemaFault
from mwnode.trust import boxes, ed25519

D = TypeVar("D", bound=Document)
SEED_BYTES = 32
_SALT_BYTES = 16
_NONCE_BYTES = SecretBox.NONCE_SIZE
_MEMORY_MAX = 1 << 30
_OPERATIONS_MAX = 16


class KeyFault(ValueError):
    """A key file that cannot be used; the text says what to do."""


class Sealed(Document):
    """A seed in a secretbox whose key Argon2id makes of a passphrase, at a cost of operations and bytes of memory."""

    kdf: str
    operations: int
    memory_bytes: int
    salt: str
    nonce: str
    box: str


class KeyFile(Document):
    """The JSON of a key file: exactly one of ``seed`` and ``sealed``; seed and public key are base64url of 32 bytes."""

    key_id: Id
    principal: Actor
    algorithm: str
    public_key: str
    organization_id: Id | UnsetType = UNSET
    seed: str | UnsetType = UNSET
    sealed: Sealed | UnsetType = UNSET

    def __post_init__(self) -> None:
        if self.algorithm != "Ed25519":
            raise ValueError("algorithm is Ed25519")
        if (self.seed is UNSET) == (self.sealed is UNSET):
            raise ValueError("a key file holds exactly one of seed and sealed")

    def __repr__(self) -> str:
        return f"KeyFile(key_id={self.key_id!r}, sealed={self.sealed is not UNSET})"


class SigningKey:
    """A private key with the identity it speaks for."""

    __slots__ = ("_public", "_seed", "key_id", "organization_id", "principal", "public_key")

    def __init__(self, key_id: str, principal: Actor, organization_id: str, seed: bytes) -> None:
        if len(seed) != SEED_BYTES:
            raise KeyFault("a seed has 32 bytes")
        self.key_id = key_id
        self.principal = principal
        self.organization_id = organization_id
        self._seed = seed
        self._public = ed25519.public_key(seed)
        self.public_key = ed25519.encode_base64url(self._public)

    def sign(self, message: bytes) -> bytes:
        """The 64-byte Ed25519 signature of ``message``."""
        return ed25519.sign(self._seed, self._public, message)

    def sign_all(self, messages: Sequence[bytes]) -> list[bytes]:
        """As :meth:`sign` for each, in order."""
        return ed25519.sign_all(self._seed, self._public, messages)

    def open_sealed(self, sealed: bytes) -> bytes:
        """What was sealed for this key; ``boxes.BoxFault`` for anything else."""
        return boxes.open_sealed(self._seed, sealed)

    def __repr__(self) -> str:
        return f"SigningKey(key_id={self.key_id!r}, principal={self.principal!r})"

    def __reduce__(self) -> Any:
        raise TypeError("a private key is not pickled")


def generate(key_id: str, principal: Actor, organization_id: str, seed: bytes) -> SigningKey:
    """A key from a fresh 32-byte seed."""
    return SigningKey(key_id, principal, organization_id, seed)


def load(data: bytes, passphrase: bytes | None = None) -> SigningKey:
    """The key in a key file. Raises :class:`KeyFault`: malformed, sealed without passphrase, wrong passphrase."""
    try:
        file = strict_json.decode(data, KeyFile)
    except (JsonFault, SchemaFault) as fault:
        # The fault of a JSON text may quote what it found; a key file's text is never quoted.
        where = fault.path if isinstance(fault, SchemaFault) else fault.reason
        raise KeyFault(f"this is not a key file of mwnode{f' ({where})' if where else ''}") from None
    seed = _open(file, passphrase) if file.seed is UNSET else _decode(file.seed, "seed")
    if len(seed) != SEED_BYTES:
        raise KeyFault("the key file's seed has not 32 bytes")
    organization_id = "" if file.organization_id is UNSET else file.organization_id
    key = SigningKey(file.key_id, file.principal, organization_id, seed)
    if key.public_key != file.public_key:
        raise KeyFault("the key file's publicKey does not belong to its seed; restore the file from a backup")
    return key


def public_key_in(data: bytes) -> bytes:
    """The 32 bytes of a key file's public key; no passphrase is needed. Raises :class:`KeyFault` when it is none."""
    try:
        return _decode(strict_json.decode(data, KeyFile).public_key, "publicKey")
    except (JsonFault, SchemaFault):
        raise KeyFault("this is not a key file of mwnode") from None


def is_sealed(data: bytes) -> bool:
    """Whether a key file needs a passphrase. Raises :class:`KeyFault` when it is none."""
    try:
        return strict_json.decode(data, KeyFile).sealed is not UNSET
    except (JsonFault, SchemaFault):
        raise KeyFault("this is not a key file of mwnode") from None


def _decode(text: str, name: str) -> bytes:
    try:
        return ed25519.decode_base64url(text)
    except ValueError:
        raise KeyFault(f"the key file's {name} is not base64url without padding") from None


def _derive(passphrase: bytes, salt: bytes, operations: int, memory_bytes: int) -> bytes:
    key: bytes = pwhash.argon2id.kdf(SecretBox.KEY_SIZE, passphrase, salt, opslimit=operations, memlimit=memory_bytes)
    return key


def _open(file: KeyFile, passphrase: bytes | None) -> bytes:
    sealed = file.sealed
    assert sealed is not UNSET, "a key file without seed is sealed"
    if passphrase is None:
        raise KeyFault("the key file is sealed: give its passphrase (MWNODE_PASSPHRASE_FILE, or type it)")
    salt, nonce, box = (_decode(getattr(sealed, name), name) for name in ("salt", "nonce", "box"))
    usable = (
        sealed.kdf == "argon2id"
        and len(salt) == _SALT_BYTES
        and len(nonce) == _NONCE_BYTES
        and pwhash.argon2id.OPSLIMIT_MIN <= sealed.operations <= _OPERATIONS_MAX
        and pwhash.argon2id.MEMLIMIT_MIN <= sealed.memory_bytes <= _MEMORY_MAX
    )
    if not usable:
        raise KeyFault("the key file is sealed in a way that this version does not know")
    try:
        seed: bytes = SecretBox(_derive(passphrase, salt, sealed.operations, sealed.memory_bytes)).decrypt(box, nonce)
    except CryptoError:
        raise KeyFault("the passphrase does not open this key file") from None
    return seed


def dump(
    key: SigningKey,
    passphrase: bytes | None = None,
    *,
    entropy: Entropy | None = None,
    operations: int = pwhash.argon2id.OPSLIMIT_MODERATE,
    memory_bytes: int = pwhash.argon2id.MEMLIMIT_MODERATE,
) -> bytes:
    """The bytes of a key file. Sealing needs ``entropy`` for salt and nonce; its cost is Argon2id's moderate one."""
    sealed: Sealed | UnsetType = UNSET
    seed: str | UnsetType = UNSET
    if passphrase is None:
        seed = ed25519.encode_base64url(key._seed)
    else:
        if not passphrase:
            raise KeyFault("an empty passphrase protects nothing")
        if entropy is None:
            raise ValueError("sealing a key needs entropy")
        salt, nonce = entropy.random(_SALT_BYTES), entropy.random(_NONCE_BYTES)
        box = SecretBox(_derive(passphrase, salt, operations, memory_bytes)).encrypt(key._seed, nonce).ciphertext
        text = ed25519.encode_base64url
        sealed = Sealed(
            kdf="argon2id",
            operations=operations,
            memory_bytes=memory_bytes,
            salt=text(salt),
            nonce=text(nonce),
            box=text(box),
        )
    file = KeyFile(
        key_id=key.key_id,
        principal=key.principal,
        algorithm="Ed25519",
        public_key=key.public_key,
        organization_id=key.organization_id or UNSET,
        seed=seed,
        sealed=sealed,
    )
    return msgspec.json.format(msgspec.json.encode(file), indent=2) + b"\n"


# --- signing documents ------------------------------------------------------------------------------------------------


def _envelope(key: SigningKey, created_at: str, signing: bytes) -> Signature:
    value = ed25519.encode_base64url(key.sign(signing))
    return Signature(algorithm="Ed25519", key_id=key.key_id, created_at=created_at, value=value)


def sign_mapping(mapping: dict[str, Any], key: SigningKey, created_at: str) -> dict[str, Any]:
    """The mapping with its ``signature``. ``created_at`` is the document's protected time, byte for byte (R-6.4-13).

    The mapping must hold the protected time already; a ``signature`` in it is replaced.
    """
    envelope = _envelope(key, created_at, jcs.signing_bytes(mapping))
    return {**mapping, "signature": msgspec.to_builtins(envelope)}


UNSIGNED = Signature(
    algorithm="Ed25519", key_id="urn:mwnode:key:none", created_at="1970-01-01T00:00:00Z", value="A" * 86
)
"""A signature that verifies nothing, for drafts of documents that are about to be signed."""
_encode_sorted = msgspec.json.Encoder(order="sorted").encode
_UNSIGNED_BYTES = _encode_sorted(UNSIGNED)


def sign_struct(builder: type[D], key: SigningKey, **members: Any) -> D:
    """A signed document from its members, the protected time among them and without ``signature``."""
    created_at = members[builder.protected_time]  # type: ignore[attr-defined]  # every signed document has one
    draft = builder(signature=UNSIGNED, **members)
    return sign_draft(draft, key, created_at)


def sign_draft(draft: D, key: SigningKey, created_at: str) -> D:
    """The same document with its signature in place of the one it has."""
    envelope = _envelope(key, created_at, jcs.signing_bytes(draft))
    return msgspec.structs.replace(draft, signature=envelope)


class SignedBytes(Struct, frozen=True):
    """A document signed straight into its canonical bytes."""

    canonical: bytes
    """The signing bytes, without the signature."""
    signing_hash: str
    encoded: bytes
    """The canonical bytes of the whole document: what is stored and sent."""


def sign_bytes(draft: Document, key: SigningKey, created_at: str) -> SignedBytes:
    """Sign a document whose ``signature`` is :data:`UNSIGNED`, encoding it once: the hot path of the authority."""
    encoded = jcs.canonical(draft)
    signing = jcs.cut_signature(encoded)
    if signing is None or encoded.count(_UNSIGNED_BYTES) != 1:
        signed = sign_draft(draft, key, created_at)
        signing = jcs.signing_bytes(signed)
        return SignedBytes(signing, jcs.signing_hash(signing), jcs.canonical(signed))
    envelope = _encode_sorted(_envelope(key, created_at, signing))
    return SignedBytes(signing, jcs.signing_hash(signing), encoded.replace(_UNSIGNED_BYTES, envelope, 1))
