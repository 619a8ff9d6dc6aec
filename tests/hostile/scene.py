"""The node under attack: a HOME with honest Agents, one bad one and a crowd, served in a process of its own."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mwnode.bench.traffic import Speaker, open_node
from mwnode.home import load_key
from mwnode.trust.keys import SigningKey, dump
from tests.hostile.wire import Place
from tests.patience import PATIENCE_SECONDS

HONEST = 4
LISTENERS = 20
CROWD = 2000
SPARE_FILES = 200
"""File descriptors that a process of ours needs for anything but the crowd."""


@dataclass(frozen=True)
class Scene:
    """A HOME and who lives there. Keys lie under its ``keys``."""

    home: Path
    group_id: str

    def key(self, name: str) -> SigningKey:
        return load_key(self.home / "keys" / f"{name}.key")

    @property
    def honest(self) -> list[SigningKey]:
        return [self.key(f"honest-{number}") for number in range(HONEST)]

    @property
    def listeners(self) -> list[SigningKey]:
        return [self.key(f"listener-{number}") for number in range(LISTENERS)]

    @property
    def mallory(self) -> SigningKey:
        return self.key("mallory")

    def crowd(self, count: int) -> Iterator[SigningKey]:
        for number in range(count):
            yield self.key(f"crowd-{number}")


def make_scene(directory: Path, crowd: int) -> Scene:
    """A new HOME. ``mallory`` is a Member of the Group, like any insider."""
    with open_node(directory, durable=False) as node:
        home = node.home.path
        # The honest here answer no PINGs between two runs, however long a slow machine takes to begin an attack.
        settings = home / "mwnode.toml"
        settings.write_text(settings.read_text().replace("[limits]\n", "[limits]\ndead_after = 86400\n"))
        assert "dead_after = 86400" in settings.read_text()
        first = Speaker(node, "honest-0")
        group_id = first.new_group()
        members = [
            Speaker(node, name)
            for name in (
                *(f"honest-{number}" for number in range(1, HONEST)),
                *(f"listener-{number}" for number in range(LISTENERS)),
                "newcomer",
                "mallory",
            )
        ]
        first.admit(group_id, members)
        others = [Speaker(node, f"crowd-{number}") for number in range(crowd)]
        for speaker in (first, *members, *others):
            name = speaker.key.principal.id.rpartition(":")[2]
            path = home / "keys" / f"{name}.key"
            path.write_bytes(dump(speaker.key))
            path.chmod(0o600)
    return Scene(home, group_id)


def crowd_size(wanted: int = CROWD) -> int:
    """How many connections one process may hold here."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(0, min(wanted, hard - SPARE_FILES))


class Running:
    """The node's process, seen from outside."""

    def __init__(self, process: subprocess.Popen[str], announced: dict[str, str]) -> None:
        self._process = process
        self.url = announced["url"]
        self.ca = announced["ca"]
        self.place = Place.of(int(self.url.rsplit(":", 1)[1].partition("/")[0]), self.ca)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def private_bytes(self) -> int:
        """RssAnon: what the process has in memory for itself."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        found = re.search(r"RssAnon:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) * 1024

    @property
    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(") ")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def files(self) -> int:
        return len(os.listdir(f"/proc/{self._process.pid}/fd"))


@contextmanager
def running(scene: Scene, log: Path) -> Iterator[Running]:
    """``mwnode serve`` on the scene's HOME, by TLS; its own words go to a file."""
    command = [sys.executable, "-m", "mwnode", "serve", "--home", str(scene.home), "--port", "0", "--json"]
    with log.open("ab") as words:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=words, text=True)
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise RuntimeError(f"the node did not start: {log.read_text()[-2000:]}")
            yield Running(process, json.loads(line))
        finally:
            process.terminate()
            try:
                process.wait(PATIENCE_SECONDS)
            finally:
                if process.poll() is None:
                    process.kill()
                    process.wait()
                if process.stdout is not None:
                    process.stdout.close()
