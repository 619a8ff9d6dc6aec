"""Protected diagnostics at rest: sealed for the Organization's audit key, so that the file alone tells nobody why a
document was refused (R-6.4-82, decision F14).

A sealed row keeps its time, by which retention goes (R-7.4-04); everything else is inside the box.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Final

import msgspec

from mwnode.protocol.ports import Entropy
from mwnode.store.port import AuditRow
from mwnode.trust.boxes import SECRET_BYTES, BoxFault, seal
from mwnode.trust.keys import SigningKey

AUDIT_KEY_META: Final = "audit key"
"""Where the store keeps the public half of the audit key: rows stay sealed when the key file is kept elsewhere."""
SEALED: Final = "sealed"
_encode = msgspec.json.Encoder().encode
_ROW = msgspec.json.Decoder(AuditRow)


class AuditSeal:
    """Seals rows for one public key."""

    def __init__(self, public_key: bytes, entropy: Entropy) -> None:
        self._public_key = public_key
        self._entropy = entropy

    def __call__(self, row: AuditRow) -> AuditRow:
        box = seal(self._public_key, _encode(row), self._entropy.random(SECRET_BYTES))
        return AuditRow(at=row.at, stage=SEALED, reason=b64encode(box).decode())


def opened(row: AuditRow, key: SigningKey) -> AuditRow:
    """The row that was sealed; a row from before sealing as it is. BoxFault for another key's, or a changed one."""
    if row.stage != SEALED:
        return row
    try:
        return _ROW.decode(key.open_sealed(b64decode(row.reason, validate=True)))
    except (msgspec.MsgspecError, ValueError) as error:
        raise BoxFault(f"the row of {row.at} was not sealed for that key, or was changed") from error
