"""HOME is made whole or not at all, keeps secrets to its user, and says plainly what is wrong with it."""

from __future__ import annotations

import errno
import multiprocessing
import os
import re
import ssl
import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from mwnode import certificates
from mwnode.home import Home, HomeError, Served, create_home, find_home, open_home
from mwnode.protocol.instants import Instant, parse
from mwnode.protocol.scalars import URI_PATTERN
from mwnode.system import OsEntropy, SystemClock
from tests.patience import PATIENCE_SECONDS

SERVED = Served(url="wss://127.0.0.1:9/ws", http="https://127.0.0.1:9", ca="/ca.pem", pid=1, port=9)


class FixedClock:
    """A clock that stands still."""

    def __init__(self, text: str) -> None:
        self.at = parse(text)

    def now(self) -> Instant:
        return self.at

    def monotonic(self) -> float:
        return 0.0


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return create_home(tmp_path / "home", SystemClock(), OsEntropy())


def test_a_new_home_opens_with_its_organization_and_keys(home: Home) -> None:
    again = open_home(home.path)
    assert again.organization_id == home.organization_id
    names = ("organization", "authority", "owner", "audit")
    keys = {name: again.key(name) for name in names}
    assert len({key.key_id for key in keys.values()}) == len({key.public_key for key in keys.values()}) == len(names)
    assert keys["owner"].principal.type == "human"
    assert keys["organization"].principal == again.registry_service
    assert keys["authority"].principal == again.authority_service
    assert all(key.organization_id == home.organization_id for key in keys.values())


def test_two_homes_share_no_identity(tmp_path: Path) -> None:
    one, two = (create_home(tmp_path / name, SystemClock(), OsEntropy()) for name in ("one", "two"))
    assert one.organization_id != two.organization_id
    assert one.key("owner").public_key != two.key("owner").public_key


@pytest.mark.req("R-2-17")
def test_the_organization_is_named_by_a_lower_case_uuid_uri(home: Home) -> None:
    assert home.organization_id.startswith("urn:uuid:")
    assert home.organization_id == home.organization_id.lower()


def test_secrets_are_readable_by_their_user_only(home: Home) -> None:
    secret = [*(home.path / "keys").iterdir(), home.path / "tls" / "ca.key", home.path / "tls" / "server.key"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in secret} == {0o600}
    assert stat.S_IMODE(home.path.stat().st_mode) == 0o700


@pytest.mark.parametrize("content", ["mwnode.toml", "something.txt"])
def test_making_a_home_where_something_is_changes_nothing(tmp_path: Path, content: str) -> None:
    (tmp_path / content).write_text("mine")
    with pytest.raises(HomeError, match="nothing was changed"):
        create_home(tmp_path, SystemClock(), OsEntropy())
    assert [path.name for path in tmp_path.iterdir()] == [content]
    assert (tmp_path / content).read_text() == "mine"


def test_an_empty_directory_becomes_a_home_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    create_home(tmp_path / "home", SystemClock(), OsEntropy())
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


def test_a_home_that_cannot_be_made_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HomeError, match="cannot be made"):
        create_home(tmp_path / "file" / "home", SystemClock(), OsEntropy())


BAD_SETTINGS = {
    "no TOML": ("format =", "mwnode.toml"),
    "an unknown policy": ("[policy]\nfresh = 1\n", r"policy\.fresh: unknown key; "),
    "a misspelt policy": (
        "[policy]\nmesage_rate = 1\n",
        r"toml:\d+: policy\.mesage_rate: .* did you mean message_rate\?",
    ),
    "a misspelt table": ("[policy]\n[limit]\n", r"toml:\d+: limit: unknown key; did you mean limits\?"),
    "a wrong type": ("[policy]\nfreshness_window = 'long'\n", r"toml:\d+: policy\.freshness_window: Expected `int`"),
    "a limit out of range": ("[limits]\nframe_bytes = 0\n", r"limits\.frame_bytes"),
    "a policy beyond all use": (
        "[policy]\nfreshness_window = 100000000000\n",
        r"toml:\d+: policy\.freshness_window: .*; allowed is from 1 up to 316224000$",
    ),
    "a policy beyond 64 bits": (
        f"[policy]\nmessage_rate = {10**30}\n",
        r"policy\.message_rate: .*; allowed is from 1 up to 1000000000$",
    ),
    "a limit beyond all use": ("[limits]\njson_depth = 100000\n", r"limits\.json_depth: .*from 1 up to 512$"),
    "a time beyond all use": ("[limits]\nsend_timeout = 1e300\n", r"limits\.send_timeout: .*more than 0 up to 86400$"),
    "a port that is none": ("[server]\nport = 70000\n", r"server\.port: .*; allowed is from 0 up to 65535$"),
    "an integer of thousands of digits": (f"format = {'9' * 5000}\n", "cannot be read to its end"),
    "brackets without end": (f"format = {'[' * 100_000}\n", "cannot be read to its end"),
    "a format that is no number": ('format = "x"\n', "format"),
    "a newer format": ("format = 99\n", "newer mwnode"),
    "no organization": ("format = 1\n", "organization"),
}


@pytest.mark.parametrize("name", BAD_SETTINGS)
def test_wrong_settings_are_named_with_their_place(home: Home, name: str) -> None:
    text, told = BAD_SETTINGS[name]
    path = home.path / "mwnode.toml"
    settings = path.read_text()
    table = text.partition("\n")[0]
    path.write_text(settings.replace(f"{table}\n", text) if table.startswith("[") else text)
    with pytest.raises(HomeError, match=told) as raised:
        open_home(home.path)
    assert "\n" not in str(raised.value)


def test_settings_that_are_no_text_are_said_in_one_line(home: Home) -> None:
    path = home.path / "mwnode.toml"
    path.write_bytes(path.read_bytes() + b"# caf\xe9\n")
    with pytest.raises(HomeError, match=r"mwnode\.toml is not UTF-8 text \(byte \d+\)"):
        open_home(home.path)


def test_a_key_file_that_the_disk_refuses_leaves_nothing_behind(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    key = home.key("owner")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    before = sorted((home.path / "keys").iterdir())
    with pytest.raises(OSError, match="No space left"):
        home.add_key("another", key)
    assert sorted((home.path / "keys").iterdir()) == before


def test_policy_and_limits_are_read_and_every_default_is_written_down(home: Home) -> None:
    path = home.path / "mwnode.toml"
    settings = path.read_text()
    everything = "\n".join(line.removeprefix("# ") if " = " in line else line for line in settings.splitlines())
    everything = everything.replace('certificate = "tls/own.pem"', "").replace('certificate_ca = "tls/own-ca.pem"', "")
    path.write_text(everything.replace('certificate_key = "tls/own.key"', "").replace("commented out show", ""))
    assert open_home(home.path).settings == home.settings
    path.write_text(settings.replace("# message_rate = 120", "message_rate = 7"))
    assert open_home(home.path).policy.message_rate == 7


def test_a_directory_that_is_no_home_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(HomeError, match="mwnode init"):
        open_home(tmp_path)


def test_home_is_the_one_named_else_the_variable_else_the_default() -> None:
    assert find_home("a", {"MWNODE_HOME": "b"}) == Path("a")
    assert find_home(None, {"MWNODE_HOME": "b"}) == Path("b")
    assert find_home(None, {}) == Path("mwnode-home")


@pytest.mark.parametrize("name", ["", "../owner", "a/b", ".hidden", "x" * 129])
def test_a_key_name_never_leads_out_of_its_directory(home: Home, name: str) -> None:
    with pytest.raises(HomeError, match="no name for a key"):
        home.key_path(name)


def test_a_damaged_or_absent_key_file_is_said_without_quoting_it(home: Home) -> None:
    with pytest.raises(HomeError, match="no key file"):
        home.key("nobody")
    home.key_path("owner").write_text('{"seed": "s3cret"}')
    with pytest.raises(HomeError, match="no usable key file") as raised:
        home.key("owner")
    assert "s3cret" not in str(raised.value)


def test_a_key_is_never_overwritten(home: Home) -> None:
    with pytest.raises(HomeError, match="exists"):
        home.add_key("owner", home.key("authority"))
    assert home.key("owner").principal.type == "human"


def test_key_identifiers_are_uris(home: Home) -> None:
    assert re.match(URI_PATTERN, home.key("owner").key_id)


def test_nobody_serves_a_fresh_home_and_the_port_of_the_last_time_is_kept(home: Home) -> None:
    assert home.served() is None
    assert home.last_port() is None
    with home.claim() as announcement:
        announcement.publish(SERVED)
    assert home.served() is None
    assert home.last_port() == 9


def _hold(path: Path, told: multiprocessing.Queue[bool], release: multiprocessing.Event) -> None:
    with open_home(path).claim() as announcement:
        announcement.publish(SERVED)
        told.put(True)
        release.wait(PATIENCE_SECONDS)
        os._exit(9)  # as after a SIGKILL: nothing is tidied up


def test_a_second_server_is_refused_while_the_first_lives_and_not_after_it_died(home: Home) -> None:
    spawn = multiprocessing.get_context("spawn")
    told, release = spawn.Queue(), spawn.Event()
    process = spawn.Process(target=_hold, args=(home.path, told, release))
    process.start()
    assert told.get(timeout=PATIENCE_SECONDS)
    assert home.served() == SERVED
    with pytest.raises(HomeError, match="being served by process 1 at https://127"), home.claim():
        pass
    release.set()
    process.join(30)
    assert process.exitcode == 9
    assert home.served() is None
    with home.claim():
        pass


def test_the_server_certificate_is_trusted_through_the_local_ca_under_tls_1_3(home: Home) -> None:
    certificate, key = home.server_certificate("127.0.0.1", SystemClock(), OsEntropy())
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.minimum_version = ssl.TLSVersion.TLSv1_3
    server.load_cert_chain(certificate, key)
    client = ssl.create_default_context(cafile=str(home.ca_path))
    assert _handshake(client, server, "localhost") == "TLSv1.3"
    with pytest.raises(ssl.SSLCertVerificationError):
        _handshake(client, server, "elsewhere.example")
    stranger = create_home(home.path.parent / "stranger", SystemClock(), OsEntropy())
    with pytest.raises(ssl.SSLCertVerificationError):
        _handshake(ssl.create_default_context(cafile=str(stranger.ca_path)), server, "localhost")


def _handshake(client: ssl.SSLContext, server: ssl.SSLContext, name: str) -> str | None:
    """Do a TLS handshake in memory; the version agreed on."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    near = client.wrap_bio(to_client, to_server, server_hostname=name)
    far = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(10):
        for side in (near, far):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return near.version()


def test_another_host_and_an_ended_certificate_make_a_new_one(home: Home) -> None:
    certificate, _ = home.server_certificate("127.0.0.1", SystemClock(), OsEntropy())
    first = certificate.read_bytes()
    assert home.server_certificate("0.0.0.0", SystemClock(), OsEntropy())[0].read_bytes() == first
    home.server_certificate("node.example", SystemClock(), OsEntropy())
    second = certificate.read_bytes()
    assert certificates.covers(second, "node.example", SystemClock().now())
    assert certificates.covers(second, "127.0.0.1", SystemClock().now())
    later = FixedClock(SystemClock().now().plus(900 * 86_400).text())
    assert not certificates.covers(second, "127.0.0.1", later.now())
    home.server_certificate("127.0.0.1", later, OsEntropy())
    assert certificates.covers(certificate.read_bytes(), "127.0.0.1", later.now())


def test_the_ca_signs_server_certificates_and_nothing_below_them(home: Home) -> None:
    ca = x509.load_pem_x509_certificate(home.ca_path.read_bytes())
    constraints = ca.extensions.get_extension_for_class(x509.BasicConstraints).value
    assert constraints.ca
    assert constraints.path_length == 0
    server = x509.load_pem_x509_certificate((home.path / "tls" / "server.pem").read_bytes())
    assert not server.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert isinstance(server.public_key(), ec.EllipticCurvePublicKey)
