"""What a command of the command line raises when it cannot go on."""

from __future__ import annotations


class Failure(Exception):
    """A command cannot go on; the text says what is wrong and what to do, in one line."""
