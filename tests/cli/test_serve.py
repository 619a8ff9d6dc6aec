"""init and serve: what they print, what they refuse, how they stop."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from mwnode.system import LASTING_PORTS, is_free, lasting_port
from tests.cli.support import ServedHome, cli, environment
from tests.patience import PATIENCE_SECONDS


@pytest.fixture
def home(tmp_path: Path) -> Path:
    assert cli("init", tmp_path / "home").status == 0
    return tmp_path / "home"


def test_init_tells_where_everything_is(tmp_path: Path) -> None:
    made = cli("init", tmp_path / "home", "--json").json
    assert set(made) == {"organizationId", "home", "ca", "keys"}
    assert set(made["keys"]) == {"organization", "authority", "owner"}
    assert all(Path(path).is_file() for path in (made["ca"], *made["keys"].values()))
    again = cli("init", tmp_path / "home")
    assert again.status == 1
    assert "nothing was changed" in again.err


def test_serve_prints_one_line_when_it_listens_and_ends_with_0(home: Path) -> None:
    served = ServedHome(home)
    told = served.listening
    assert set(told) == {"event", "url", "http", "ca", "pid"}
    assert told["event"] == "listening"
    assert told["pid"] == served.process.pid
    assert told["url"] == told["http"].replace("https", "wss") + "/ws"
    assert told["ca"] == str(home / "tls" / "ca.pem")
    status, rest = served.stop()
    assert (status, rest) == (0, "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_both_signals_stop_it_in_order(home: Path, number: signal.Signals) -> None:
    assert ServedHome(home).stop(number)[0] == 0


def test_the_port_of_the_last_time_is_taken_again(home: Path) -> None:
    first = ServedHome(home)
    first.stop()
    second = ServedHome(home)
    second.stop(signal.SIGKILL)
    third = ServedHome(home)
    third.stop()
    assert first.listening["url"] == second.listening["url"] == third.listening["url"]


def test_a_port_that_lasts_is_none_that_the_system_gives_away() -> None:
    port = lasting_port("127.0.0.1")
    assert port in LASTING_PORTS
    with socket.create_server(("127.0.0.1", port)):
        assert not is_free("127.0.0.1", port)


def test_when_every_port_is_taken_the_system_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mwnode.system.is_free", lambda host, port: False)
    assert lasting_port("127.0.0.1") == 0


def test_an_empty_home_is_made_by_serve(tmp_path: Path) -> None:
    served = ServedHome(tmp_path / "new")
    served.stop()
    assert f"no HOME at {tmp_path / 'new'}: a NEW Organization" in served.errors
    assert cli("verify", "--home", tmp_path / "new", "--json").json["ok"]


def test_a_second_serve_names_the_first(home: Path) -> None:
    served = ServedHome(home)
    try:
        done = _serve(home, "--port", "0")
        assert done.returncode == 1
        assert f"process {served.process.pid}" in done.stderr
        assert served.listening["http"] in done.stderr
        assert len(done.stderr.splitlines()) == 1
    finally:
        served.stop()


def test_a_taken_port_is_told_with_its_number(home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = _serve(home, "--port", str(port))
    assert done.returncode == 1
    assert f"port {port} of 127.0.0.1 is in use" in done.stderr
    assert "Traceback" not in done.stderr


def test_plain_text_is_for_loopback_only(home: Path) -> None:
    done = _serve(home, "--port", "0", "--plaintext", "--host", "0.0.0.0")
    assert done.returncode == 1
    assert "loopback" in done.stderr
    served = ServedHome(home, "--port", "0", "--plaintext")
    served.stop()
    assert served.listening["ca"] is None
    assert served.listening["url"].startswith("ws://127.0.0.1:")


def test_a_wrong_ca_is_refused_by_the_client(home: Path, tmp_path: Path) -> None:
    other = cli("init", tmp_path / "other", "--json").json
    served = ServedHome(home)
    try:
        options = ("--url", served.listening["http"], "--key", home / "keys" / "owner.key", "--ca", other["ca"])
        done = cli("mission", "list", *options)
        assert done.status == 1
        assert "is not trusted" in done.err
    finally:
        served.stop()


def _serve(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mwnode", "serve", "--home", str(home), *arguments],
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


def test_a_node_says_where_it_is_only_while_it_serves(home: Path) -> None:
    served = ServedHome(home)
    assert json.loads((home / "served.json").read_text())["pid"] == served.process.pid
    served.stop(signal.SIGKILL)
    # Its file remains, but nobody believes it: the command opens the store itself.
    assert cli("mission", "list", "--home", home, "--json").json == {"missions": []}
