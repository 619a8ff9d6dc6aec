"""From a command to its exit status, and from whatever went wrong to one line on stderr."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Sequence

import click

from mwnode.cli.output import plain_line

REFUSED = 1
WRONG_USAGE = 2
INTERRUPTED = 128 + signal.SIGINT


def run(command: click.Command, arguments: Sequence[str] | None) -> int:
    """Run a command to its exit status. A person never sees a traceback for a mistake or an ordinary misfortune."""
    try:
        status = command.main(arguments, prog_name="mwnode", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)  # the help is the message: its lines stay lines
        return WRONG_USAGE
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else "mwnode"
        # click calls the type of a bounded number a range, which a value never is.
        told = error.format_message().replace(" is not a valid integer range", " is not a whole number")
        told = told.replace(" is not a valid float range", " is not a number")
        return _say(f"{path}: {told} (see `{path} --help`)", WRONG_USAGE)
    except click.ClickException as error:
        return _say(f"mwnode: {error.format_message()}", REFUSED)
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:
        # The reader (head, less) has seen enough. Nothing more may be written, not even by the interpreter's end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return REFUSED
    except Exception as error:
        # What can be explained is known to a module that the happy path, which starts fast, never imports.
        told = importlib.import_module("mwnode.cli.explain").explain(error)
        if told is None:
            raise  # a fault of mwnode itself: its traceback is what helps
        return _say(f"mwnode: {told}", REFUSED)
    return status if isinstance(status, int) else 0


def _say(line: str, status: int) -> int:
    # A refusal may quote what somebody else wrote.
    click.echo(plain_line(" ".join(line.split())), err=True)
    return status
