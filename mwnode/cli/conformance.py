"""`mwnode conformance`: run a published bundle of vectors."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from mwnode.cli.exits import REFUSED
from mwnode.cli.failure import Failure
from mwnode.cli.output import emit, table
from mwnode.cli.target import Target, at_home
from mwnode.conformance import run
from mwnode.conformance.bundle import BundleFault
from mwnode.conformance.report import SECTIONS


@click.command()
@click.argument("bundle", type=click.Path(exists=True, file_okay=False, path_type=Path))
@at_home
def conformance(target: Target, bundle: Path) -> None:
    """Check this implementation against BUNDLE, a checkout of the public protocol.

    Runs conformance/manifest.json, cryptography/manifest.json and admission/manifest.json, whichever are there. Exit
    status 0 only when nothing failed.
    """
    try:
        report = run(bundle)
    except BundleFault as fault:
        raise Failure(str(fault)) from None
    rows = [(section, getattr(report, section).passed, getattr(report, section).failed) for section in SECTIONS]
    lines = table(("bundle", "passed", "failed"), rows)
    lines += [
        f"{failure.section}: {failure.case}: expected {failure.expected}, got {failure.got}"
        for failure in report.failures
    ]
    emit(target.as_json, report, lines)
    if not report.ok:
        sys.exit(REFUSED)
