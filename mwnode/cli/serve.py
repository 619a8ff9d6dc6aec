"""`mwnode serve`: the authority, until it is told to stop."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import socket
import sys

import click
from msgspec import structs

from mwnode.cli.compose import CLOCK, ENTROPY
from mwnode.cli.exits import Failure
from mwnode.cli.init import make
from mwnode.cli.output import emit
from mwnode.cli.target import Target, at_home
from mwnode.gateway.server import Server, server_tls
from mwnode.gateway.server import serve as listen
from mwnode.home import Announcement, Home, Served, open_home
from mwnode.node import Node

STOP_SECONDS = 5.0
"""How long a stopping node waits for its connections (decision E15)."""


@click.command()
@click.option("--host", metavar="H", help="Address to listen on; default: [server] host of mwnode.toml.")
@click.option("--port", type=click.IntRange(0, 65535), metavar="P", help="0 = the last one if free, else any.")
@click.option("--plaintext", is_flag=True, help="Without TLS: on a loopback address only.")
@at_home
def serve(target: Target, host: str | None, port: int | None, plaintext: bool) -> None:
    """Serve HOME: the authority of its Organization, for Agents by WebSocket and for everybody by HTTP.

    Makes the Organization first where HOME is empty. Stops in order on SIGTERM and SIGINT.
    """
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    path = target.home_path
    home = open_home(path) if (path / "mwnode.toml").exists() else make(path)
    with home.claim() as announcement, Node.open(home.path) as node:
        asyncio.run(_serve(target, home, node, announcement, host or home.settings.server.host, port, plaintext))


async def _serve(
    target: Target,
    home: Home,
    node: Node,
    announcement: Announcement,
    host: str,
    port: int | None,
    plaintext: bool,
) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
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
        await stop.wait()
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
    """The port of the last time, so that addresses given out stay good, if nobody took it since; else 0."""
    last = home.last_port()
    if last is None:
        return 0
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, last))
        except OSError:
            return 0
    return last
