"""Asking before what cannot be taken back."""

from __future__ import annotations

import sys

import click


def sure(question: str, yes: bool) -> None:
    """Ask on a terminal unless --yes was given; a script means what it says. Raises click.Abort when declined."""
    if not yes and sys.stdin.isatty():
        click.confirm(question, abort=True, err=True)
