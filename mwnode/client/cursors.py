"""Where an Agent is in each of its Groups, kept in a file over restarts. Shell."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from mwnode.client.errors import ClientError
from mwnode.files import write_whole

_decode = msgspec.json.Decoder(dict[str, int]).decode


class CursorFile:
    """Sequences by Group, as JSON. Each change is on the disk, whole, before ``keep`` returns; one process at a time.

    A Group's Cursor never goes back (R-16-04). ClientError when the file is not one that this class wrote.
    """

    def __init__(self, path: Path | str) -> None:
        self._path = Path(path)
        try:
            self._kept = _decode(self._path.read_bytes())
        except FileNotFoundError:
            self._kept = {}
        except (msgspec.DecodeError, OSError) as error:
            raise ClientError(
                f"{self._path} does not tell any Cursors ({error}): remove it to begin every Group anew"
            ) from error

    def position(self, group_id: str) -> int:
        """The sequence up to which the Group was processed; 0 before its first Event."""
        return self._kept.get(group_id, 0)

    def positions(self, group_ids: Iterable[str]) -> dict[str, int]:
        """For ``Client.subscribe``."""
        return {group_id: self.position(group_id) for group_id in group_ids}

    def keep(self, group_id: str, sequence: int) -> bool:
        """The Group was processed up to here; whether that was news. OSError when the disk does not take it."""
        if sequence <= self.position(group_id):
            return False
        kept = {**self._kept, group_id: sequence}
        write_whole(self._path, msgspec.json.encode(kept, order="sorted"))
        self._kept = kept
        return True
