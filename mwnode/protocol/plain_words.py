"""What is wrong with a value, in words for people: no pattern is ever shown, and allowed values are listed."""

from __future__ import annotations

import re
from typing import Any, Final, get_args

from mwnode.protocol import scalars

_MATCHING: Final = "Expected `str` matching regex "
_REGEX = re.compile(r"""Expected `str` matching regex (?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")""", re.DOTALL)


def _pattern(alias: Any) -> str:
    (found,) = (meta.pattern for meta in get_args(alias)[1:] if meta.pattern is not None)
    return str(found)


_WORDS: Final[dict[str, str]] = {
    _MATCHING + repr(_pattern(alias)): f"Expected {words}"
    for alias, words in (
        (scalars.Id, "an absolute URI, such as urn:uuid:..."),
        (scalars.WssUri, "a wss:// address"),
        (scalars.Timestamp, "a timestamp such as 2030-01-31T12:00:00Z"),
        (scalars.Semver, "a version such as 1.0.0"),
        (scalars.Base64Url, "base64url without padding"),
        (scalars.Sha256, "sha256: and 64 lowercase hexadecimal digits"),
        (scalars.IdOrSha256, "an absolute URI or sha256: and 64 lowercase hexadecimal digits"),
        (scalars.Duration, "a duration such as PT30M or P2D"),
        (scalars.EventKindName, "a kind such as work.start"),
        (scalars.ExtensionKind, "a kind such as ext.acme.tools.deploy"),
        (scalars.CapabilityId, "a capability such as acme.python.test"),
        (scalars.Currency, "a currency of three capitals, such as EUR"),
        (scalars.LocalName, "a name of letters, digits, '.', '_' and '-' that begins with a letter or digit"),
        (scalars.MediaType, "a media type such as text/plain"),
        (scalars.Operation, "an operation such as write.branch"),
        (scalars.FailureName, "a name of capitals such as EXECUTOR_FAILED"),
        (scalars.ClosureReason, "a text that is not blank"),
    )
}


def plain(message: str) -> str:
    """An error text of msgspec without the pattern that it may quote."""
    return _REGEX.sub(lambda found: _WORDS.get(found[0], "Expected another form of text"), message)


def one_of(allowed: Any) -> str:
    """What to say where only some values are allowed."""
    return f"is one of {', '.join(str(value) for value in allowed)}"
