"""HOME: the directory of one Organization's node.

``mwnode.toml`` (settings), ``node.mdb`` (the store), ``keys/NAME.key`` (mode 0600), ``tls/`` (the local CA and the
server's certificate) and ``served.json`` (where a serving node listens). Private keys live here and nowhere else.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from mwnode import certificates
from mwnode.authority.policy import Policy
from mwnode.files import write_whole
from mwnode.protocol.documents import Actor
from mwnode.protocol.identifiers import uuid7_urn
from mwnode.protocol.limits import Limits
from mwnode.protocol.ports import Clock, Entropy
from mwnode.settings import SETTINGS_FORMAT, HomeError, Organization, Settings, read_settings, settings_text
from mwnode.trust import keys

__all__ = [
    "Announcement",
    "Home",
    "HomeError",
    "Organization",
    "Served",
    "create_home",
    "create_keyless",
    "find_home",
    "load_key",
    "make_key",
    "open_home",
    "seal_key",
]

HOME_VARIABLE = "MWNODE_HOME"
DEFAULT_HOME = "mwnode-home"
SERVER_HOSTS = ("127.0.0.1", "::1", "localhost")
INITIAL_KEYS = ("organization", "authority", "owner", "audit")
"""The names of the keys that come with a new HOME."""
_SEED_BYTES = 32
_KEY_NAME = re.compile(r"\A[a-zA-Z0-9][a-zA-Z0-9._-]{0,127}\Z")


class Served(Struct, frozen=True):
    """Where a serving node listens; ``ca`` is ``None`` without TLS."""

    url: str
    http: str
    ca: str | None
    pid: int
    port: int


class Home(Struct, frozen=True):
    """An existing HOME. Reads settings once; keys are read when asked for."""

    path: Path
    settings: Settings

    @property
    def organization_id(self) -> str:
        return self.settings.organization.id

    @property
    def policy(self) -> Policy:
        return self.settings.policy

    @property
    def limits(self) -> Limits:
        return self.settings.limits

    @property
    def store_path(self) -> Path:
        return self.path / "node.mdb"

    @property
    def founded_path(self) -> Path:
        """Tells that a store was founded here: without it a lost ``node.mdb`` looks like a new HOME."""
        return self.path / "founded"

    def note_founded(self) -> None:
        """Remember that there is a store; nothing where that is known, or HOME cannot be written."""
        if not self.founded_path.exists():
            with suppress(OSError):
                self.founded_path.write_text(f"{self.organization_id}\n", encoding="utf-8")

    def check_store(self, *, there: bool) -> None:
        """Refuse to begin anew where a store was before; HomeError says what to do."""
        if self.founded_path.exists() and not there:
            raise HomeError(
                f"{self.store_path} is gone or empty, and there was a store: put a backup in its place (made by "
                "`mwnode backup`), or begin an empty one that knows nothing of before by `mwnode serve --new-store`"
            )

    @property
    def ca_path(self) -> Path:
        """The certificate that clients of this node trust."""
        own = self.settings.server.certificate_ca
        return self.path / own if own else self.path / "tls" / "ca.pem"

    @property
    def registry_service(self) -> Actor:
        return Actor(type="service", id=self.settings.organization.registry_service)

    @property
    def authority_service(self) -> Actor:
        return Actor(type="service", id=self.settings.organization.authority_service)

    def key_path(self, name: str) -> Path:
        """Where the key of that name is kept; HomeError for a name that is no plain file name."""
        if not _KEY_NAME.match(name):
            raise HomeError(f"{name!r} is no name for a key: letters, digits, '.', '_' and '-', at most 128")
        return self.path / "keys" / f"{name}.key"

    def key(self, name: str, passphrase: bytes | None = None) -> keys.SigningKey:
        """The key of that name; HomeError when it is absent, damaged, or sealed by another passphrase."""
        path = self.key_path(name)
        if name in INITIAL_KEYS and not path.exists():
            raise HomeError(f"no key file {path}: `mwnode init` makes it once; put it back from a copy of keys/")
        return load_key(path, passphrase)

    def public_key(self, name: str) -> bytes | None:
        """The public half of the key of that name, sealed or not; ``None`` where there is no such file."""
        path = self.key_path(name)
        try:
            return keys.public_key_in(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise HomeError(f"{path} is no usable key file: {error}") from error

    def add_key(
        self, name: str, key: keys.SigningKey, passphrase: bytes | None = None, entropy: Entropy | None = None
    ) -> Path:
        """Keep a key under a new name, readable by this user only; HomeError when the name is taken.

        With a passphrase the seed is sealed, which needs entropy.
        """
        path = self.key_path(name)
        if path.exists():
            raise HomeError(f"{path} exists: choose another name, or move that file away first")
        write_whole(path, keys.dump(key, passphrase, entropy=entropy))
        return path

    def server_certificate(self, host: str, clock: Clock, entropy: Entropy) -> tuple[Path, Path]:
        """Certificate and key files for serving on a host; the local CA issues one when none fits."""
        own = self.settings.server
        if own.certificate is not None:
            return self.path / own.certificate, self.path / (own.certificate_key or own.certificate)
        certificate, key = self.path / "tls" / "server.pem", self.path / "tls" / "server.key"
        now = clock.now()
        # 0.0.0.0 and :: stand for every address, which no certificate can name.
        named = [] if host in {"0.0.0.0", "::"} else [host]
        if not all(certificates.covers(certificate.read_bytes(), name, now) for name in (*SERVER_HOSTS, *named)):
            authority = (self.path / "tls" / "ca.pem").read_bytes(), (self.path / "tls" / "ca.key").read_bytes()
            hosts = (*SERVER_HOSTS, *(name for name in named if name not in SERVER_HOSTS))
            pem, private = certificates.issue_server(authority, hosts, now, entropy)
            write_whole(key, private)
            certificate.write_bytes(pem)
        return certificate, key

    def served(self) -> Served | None:
        """Where a node serves this HOME now, or ``None`` when none does."""
        try:
            with open(self._served_path, "rb") as file:
                if _lock(file.fileno(), fcntl.LOCK_SH):
                    return None
                return msgspec.json.decode(file.read(), type=Served)
        except (FileNotFoundError, msgspec.DecodeError):
            # Absent: never served. Unreadable: the node that holds the lock is just starting.
            return None

    def last_port(self) -> int | None:
        """The port that this HOME was last served on: kept, so that addresses handed out stay good (decision E11)."""
        try:
            return msgspec.json.decode(self._served_path.read_bytes(), type=Served).port
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    @contextmanager
    def claim(self) -> Iterator[Announcement]:
        """Be the one node that serves this HOME, for as long as the context lasts; HomeError when another one is."""
        descriptor = os.open(self._served_path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            if not _lock(descriptor, fcntl.LOCK_EX):
                holder = self.served()
                where = f" by process {holder.pid} at {holder.http}" if holder else ""
                raise HomeError(f"{self.path} is being served{where}: stop that node first, or use another HOME")
            yield Announcement(descriptor)
        finally:
            os.close(descriptor)

    @property
    def _served_path(self) -> Path:
        return self.path / "served.json"


class Announcement:
    """The claim of a serving node on its HOME; the operating system drops it when the process ends, however it ends."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def publish(self, served: Served) -> None:
        """Tell other commands on this machine where the node listens."""
        text = msgspec.json.encode(served)
        # Written over what is there: that needs no room where the disk is full.
        os.pwrite(self._descriptor, text, 0)
        os.ftruncate(self._descriptor, len(text))


def find_home(named: str | Path | None, environment: Mapping[str, str]) -> Path:
    """The HOME that a command means: the one named, else ``$MWNODE_HOME``, else ``./mwnode-home``."""
    return Path(named or environment.get(HOME_VARIABLE) or DEFAULT_HOME)


def open_home(path: Path | str) -> Home:
    """Open an existing HOME; HomeError tells what is missing or wrong in its settings, and where."""
    path = Path(path).absolute()
    return Home(path, read_settings(path))


def create_home(path: Path | str, clock: Clock, entropy: Entropy, *, durable: bool = True) -> Home:
    """Make a HOME: an Organization with its keys, a local CA and settings; HomeError when something is there already.

    All or nothing: it is built beside `path` and moved into place as its last step. ``durable=False`` leaves out the
    fsync of each key, for tests.
    """
    path = Path(path).absolute()
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        what = "is a mwnode HOME already" if (path / "mwnode.toml").exists() else "exists and is not empty"
        raise HomeError(f"{path} {what}: nothing was changed; choose another place")
    now = clock.now()
    building = path.parent / f".{path.name}.{entropy.random(6).hex()}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for directory in (building, building / "keys", building / "tls"):
            directory.mkdir(mode=0o700)
        organization = Organization(
            id=uuid7_urn(now, entropy.random(10)),
            created_at=now.text(),
            registry_service="urn:mwnode:service:registry",
            authority_service="urn:mwnode:service:authority",
        )
        home = Home(building, Settings(format=SETTINGS_FORMAT, organization=organization))
        principals = {
            "organization": home.registry_service,
            "authority": home.authority_service,
            "owner": Actor(type="human", id="urn:mwnode:human:owner"),
            "audit": Actor(type="service", id="urn:mwnode:service:audit"),
        }
        for name, principal in principals.items():
            key = make_key(name, principal, organization.id, entropy)
            write_whole(home.key_path(name), keys.dump(key, None, entropy=None), durable=durable)
        authority = certificates.issue_authority(organization.id, now, entropy)
        server = certificates.issue_server(authority, SERVER_HOSTS, now, entropy)
        for name, (certificate, private) in {"ca": authority, "server": server}.items():
            (building / "tls" / f"{name}.pem").write_bytes(certificate)
            write_whole(building / "tls" / f"{name}.key", private, durable=durable)
        (building / "mwnode.toml").write_text(settings_text(organization), encoding="utf-8")
        os.replace(building, path)
    except OSError as error:
        raise HomeError(f"{path} cannot be made: {error.strerror}") from error
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return open_home(path)


def create_keyless(path: Path | str, organization: Organization) -> Home:
    """Make a HOME for reading another node's Groups: the Organization's settings and no key at all.

    HomeError when something is there already. Whoever puts the Organization's keys into ``keys/`` may serve it.
    """
    path = Path(path).absolute()
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise HomeError(f"{path} exists and is not empty: nothing was changed; choose another place")
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        (path / "keys").mkdir(mode=0o700)
        (path / "mwnode.toml").write_text(settings_text(organization), encoding="utf-8")
    except OSError as error:
        raise HomeError(f"{path} cannot be made: {error.strerror}") from error
    return open_home(path)


def make_key(name: str, principal: Actor, organization_id: str, entropy: Entropy) -> keys.SigningKey:
    """A new Ed25519 key for a Principal. Its ID never names another key (R-6.4-17), hence the random tail."""
    key_id = f"urn:mwnode:key:{name}:{entropy.random(8).hex()}"
    return keys.generate(key_id, principal, organization_id, entropy.random(_SEED_BYTES))


def seal_key(path: Path, passphrase: bytes, entropy: Entropy) -> keys.SigningKey:
    """Seal the seed in a key file by a passphrase, in place; HomeError when it is sealed already, or no key file."""
    key = load_key(path)
    write_whole(path, keys.dump(key, passphrase, entropy=entropy))
    return key


def load_key(path: Path, passphrase: bytes | None = None) -> keys.SigningKey:
    """The key in a key file; HomeError when it is absent, damaged, or sealed by another passphrase."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise HomeError(
            f"no key file {path}: name one by --key, or make one by `mwnode agent add NAME` or `mwnode human add NAME`"
        ) from None
    except OSError as error:
        raise HomeError(f"{path} cannot be read: {error.strerror}") from error
    try:
        return keys.load(data, passphrase)
    except ValueError as error:
        raise HomeError(f"{path} is no usable key file: {error}") from error


def _lock(descriptor: int, mode: int) -> bool:
    """Take the lock without waiting; False when somebody holds it otherwise."""
    with suppress(BlockingIOError):
        fcntl.flock(descriptor, mode | fcntl.LOCK_NB)
        return True
    return False
