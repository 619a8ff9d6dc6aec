"""Asking before what cannot be taken back, and before a human's signature."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import NamedTuple

import click

from mwnode.cli.failure import Failure
from mwnode.cli.target import Target


def sure(question: str, yes: bool) -> None:
    """Ask on a terminal unless --yes was given; a script means what it says. Failure when declined."""
    if not yes and sys.stdin.isatty():
        _confirm(question)


def _confirm(question: str) -> None:
    if not click.confirm(question, err=True):
        raise Failure("you said no: nothing was signed or changed")


class Consent(NamedTuple):
    """How a human says beforehand that what is shown shall be signed: by --yes, or by the revision looked at."""

    yes: bool
    revision: int | None

    def check(self, present: int) -> None:
        """Failure where another revision was looked at than the present one; nothing is signed then."""
        if self.revision is not None and self.revision != present:
            raise Failure(
                f"it is at revision {present}, not at {self.revision} as --revision says: nothing was signed; look at "
                "it anew, then decide"
            )


def sign_exactly(
    target: Target, shown: Iterable[str], question: str, consent: Consent, revision: int, *, optional: bool = False
) -> None:
    """Show what will be signed, and ask on a terminal unless --yes or the right --revision said it.

    UsageError where nobody can be asked, unless ``optional``: then a script means what it says. With --json what is
    shown goes to stderr, and only where somebody is asked. Failure for another revision, and when declined.
    """
    said = consent.yes or consent.revision is not None
    asked = not said and sys.stdin.isatty()
    refused = not said and not asked and not optional
    if not target.as_json or asked or refused:
        for text in shown:
            click.echo(text, err=target.as_json)
    consent.check(revision)
    if refused:
        raise click.UsageError(
            f"nobody can be asked without a terminal: give --yes to sign exactly this, or --revision {revision}"
        )
    if asked:
        _confirm(question)
