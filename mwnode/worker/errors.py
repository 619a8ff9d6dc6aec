"""What keeps a Worker from working."""

from __future__ import annotations


class WorkerError(Exception):
    """The Worker cannot work; one line that says what to do."""


class DirectoryBusy(WorkerError):
    """Another Worker uses the directory; one line that says what to do."""
