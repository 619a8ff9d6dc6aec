"""`mwnode serve`: the authority, until it is told to stop."""

from __future__ import annotations

import asyncio
import errno
import os
import sys
from functools import partial
from pathlib import Path

import click
from msgspec import structs

from mwnode.cli.compose import CLOCK, ENTROPY
from mwnode.cli.failure import Failure
from mwnode.cli.init import make
from mwnode.cli.inside import Inside, Workers, check
from mwnode.cli.logs import FORMS, Form, log_to
from mwnode.cli.output import emit
from mwnode.cli.target import Target, at_home, read_key
from mwnode.client.running import stopped_by_signals
from mwnode.gateway.server import Server, server_tls
from mwnode.gateway.server import serve as listen
from mwnode.home import Announcement, Home, Served, open_home
from mwnode.node import Node
from mwnode.system import is_free, lasting_port, raise_file_limit

STOP_SECONDS = 5.0
"""How long a stopping node waits for its connections (decision E15)."""


@click.command()
@click.option("--host", metavar="H", help="Address to listen on; default: [server] host of mwnode.toml.")
@click.option("--port", type=click.IntRange(0, 65535), metavar="P", help="0 = the last one if free, else any.")
@click.option("--plaintext", is_flag=True, help="Without TLS: on a loopback address only.")
@click.option(
    "--worker",
    "workers",
    multiple=True,
    metavar="KEY=CMD",
    help="Also a Worker in this process: an Agent's name or key file, and its program. May be given several times.",
)
@click.option(
    "--log",
    "log_form",
    type=click.Choice(FORMS),
    default="text",
    show_default=True,
    help="Lines on stderr: for people, or JSON objects.",
)
@click.option("--new-store", is_flag=True, help="Begin an empty store where HOME's own is gone.")
@click.option("--new-keys", is_flag=True, help="Bind another authority.key beside the one that is bound and valid.")
@at_home
def serve(
    target: Target,
    host: str | None,
    port: int | None,
    plaintext: bool,
    workers: tuple[str, ...],
    log_form: Form,
    new_store: bool,
    new_keys: bool,
) -> None:
    """Serve HOME: the authority of its Organization, for Agents by WebSocket and for everybody by HTTP.

    Makes the Organization first where HOME is empty. Stops in order on SIGTERM and SIGINT.
    """
    log_to(sys.stderr, log_form)
    raise_file_limit()
    path, spelled = target.home_path, [_spelled(text) for text in workers]
    home = open_home(path) if (path / "mwnode.toml").exists() else _found(path)
    wanted = [_inside(home, name, command) for name, command in spelled]
    check(wanted)
    opened = partial(Node.open, home.path, new_store=new_store, new_keys=new_keys)
    with home.claim() as announcement, opened() as node:
        inside = Workers(wanted, home.path)
        where = host or home.settings.server.host
        asyncio.run(_serve(target, home, node, announcement, where, port, plaintext, inside))


def _spelled(text: str) -> tuple[str, str]:
    """The two halves of KEY=CMD."""
    name, separator, command = text.partition("=")
    if not (name and separator and command.strip()):
        raise click.UsageError(f"--worker {text!r} is not KEY=CMD, such as builder='python build.py'")
    return name, command


def _inside(home: Home, name: str, command: str) -> Inside:
    """The Worker of a key, by its file or its name in HOME."""
    path = Path(name)
    if not path.exists():
        path = home.key_path(name)
    return Inside(read_key(path), command)


def _found(path: Path) -> Home:
    """A new HOME, said aloud: whoever meant another one must notice at once."""
    home = make(path)
    click.echo(
        f"mwnode: there was no HOME at {home.path}: a NEW Organization, {home.organization_id}, was made there. "
        "If you meant another one, stop and give --home or $MWNODE_HOME.",
        err=True,
    )
    return home


async def _serve(
    target: Target,
    home: Home,
    node: Node,
    announcement: Announcement,
    host: str,
    port: int | None,
    plaintext: bool,
    workers: Workers,
) -> None:
    stop = asyncio.Event()
    with stopped_by_signals(stop):
        server = await _listen(home, node, host, port, plaintext)
        try:
            ca = None if plaintext else str(home.ca_path)
            served = Served(url=server.url, http=server.http, ca=ca, pid=os.getpid(), port=server.port)
            node.store.set_holder(server.http)
            announcement.publish(served)
            document = {
                "event": "listening",
                **{name: value for name, value in structs.asdict(served).items() if name != "port"},
            }
            emit(target.as_json, document, f"listening on {server.url} and {server.http} (Ctrl-C to stop)")
            workers.start(served)
            await stop.wait()
            await workers.stop()
        finally:
            await server.close(STOP_SECONDS)


async def _listen(home: Home, node: Node, host: str, port: int | None, plaintext: bool) -> Server:
    if port is None:
        port = home.settings.server.port
    elif port == 0:
        port = _last_port(home, host)
    try:
        tls = None if plaintext else server_tls(*home.server_certificate(host, CLOCK, ENTROPY))
        return await listen(node, host, port, tls=tls)
    except ValueError as error:
        raise Failure(str(error)) from error
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise Failure(f"port {port} of {host} is in use: give --port 0 for a free one, or another") from error
        raise Failure(f"{host} port {port} cannot be listened on: {error.strerror or error}") from error


def _last_port(home: Home, host: str) -> int:
    """The port of the last time, so that addresses given out stay good, if nobody took it since; else another one."""
    last = home.last_port()
    return last if last is not None and is_free(host, last) else lasting_port(host)
