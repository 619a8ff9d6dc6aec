"""`mwnode bench`: figures on this machine, each beside its floor of the same run."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from mwnode.bench import embedded, parts, sockets
from mwnode.bench.report import Result, this_machine
from mwnode.cli.output import emit, table
from mwnode.cli.target import Target, at_home

NAMES = ("append", "replay", "verify", "fanout", "dedup", "artifacts", "scheduler")


@click.command()
@click.argument("name", metavar="[NAME]", type=click.Choice(NAMES), required=False)
@click.option("--count", type=click.IntRange(min=100), help="How many Commands, Events or MiB; each has its default.")
@click.option("--embedded", "in_process", is_flag=True, help="append: in process, and the cost in a long Group.")
@click.option(
    "--events",
    type=click.IntRange(min=2_000),
    default=20_000,
    show_default=True,
    help="append --embedded: length of the Group whose Commands are compared with those of one of 1,000 Events.",
)
@at_home
def bench(target: Target, name: str | None, count: int | None, in_process: bool, events: int) -> None:
    """Measure one path, or all of them, each on a HOME of its own that is removed afterwards.

    Rates and times depend on the machine; the ratio says how near to the floor the node comes: to the signatures
    alone for Commands, to the bare library or file for the rest. The bench states its own policy.
    """
    results: list[Result] = []
    for chosen in (name,) if name else NAMES:
        with tempfile.TemporaryDirectory(prefix="mwnode-bench-") as directory:
            results += _measure(chosen, Path(directory), count, in_process, events)
    document = {"machine": this_machine(), "results": results}
    rows = [[each.name, each.value, each.unit, each.floor, each.ratio] for each in results]
    emit(target.as_json, document, table(["what", "value", "unit", "floor", "ratio"], rows))


def _measure(name: str, directory: Path, count: int | None, in_process: bool, events: int) -> list[Result]:
    if name == "append" and in_process:
        long = directory / "long"
        long.mkdir()
        return embedded.append(directory, count or 5_000) + embedded.growth(long, 1_000, events)
    if name == "append":
        return sockets.append(directory, count or 5_000)
    if name == "dedup":
        return [each for each in embedded.append(directory, count or 5_000) if "retried" in each.name]
    if name == "replay":
        return sockets.replay(directory, count or 20_000)
    if name == "fanout":
        return sockets.fanout(directory, 100, count or 300)
    if name == "verify":
        return embedded.verify(directory, count or 2_048)
    if name == "artifacts":
        return parts.artifacts(directory, count or 100)
    return parts.scheduler(count or 10_000)
