"""How a long-running command logs: lines for people, or one JSON object a line for whoever collects them."""

from __future__ import annotations

import logging
import sys
from typing import Literal, TextIO

import msgspec

from mwnode.protocol.instants import from_microseconds

Form = Literal["text", "json"]
FORMS: tuple[Form, ...] = ("text", "json")
_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class JsonLines(logging.Formatter):
    """``{"at", "level", "logger", "message"}`` and, after a failure, its ``traceback``.

    What is logged holds no secret in either form: keys and tokens show nothing of themselves, and refusals are logged
    in the words of the wire.
    """

    def format(self, record: logging.LogRecord) -> str:
        document = {
            "at": from_microseconds(int(record.created * 1_000_000)).text(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            document["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(document).decode()


def log_to(stream: TextIO = sys.stderr, form: Form = "text") -> None:
    """Log everything from INFO on to a stream."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines() if form == "json" else logging.Formatter(_TEXT))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
