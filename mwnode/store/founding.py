"""The root of a store: the key that is bound by the file itself, and the Principals that come with it.

Everything else about keys and Principals follows from it and from Registry Commands, which is how it is proven.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from mwnode.authority.state import KEYS, PRINCIPALS, KeyRow, PrincipalRow
from mwnode.protocol.commands import Binding
from mwnode.protocol.documents import Actor
from mwnode.store.errors import StoreCorrupt
from mwnode.store.port import ReadTransaction, WriteTransaction

FOUNDING_META: Final = "founding"


class Founding(Struct, frozen=True):
    """What the founding of a store writes without any Command."""

    binding: Binding
    principals: tuple[Actor, ...]


def founding_of(view: ReadTransaction) -> Founding | None:
    """The store's root; ``None`` where it does not tell. StoreCorrupt when it cannot be read."""
    value = view.meta(FOUNDING_META)
    try:
        return None if value is None else msgspec.json.decode(value, type=Founding)
    except msgspec.MsgspecError as error:
        raise StoreCorrupt(f"the root of the store cannot be read: {error}", f"meta {FOUNDING_META}") from error


def keep_founding(txn: WriteTransaction, founding: Founding) -> None:
    """Remember the root, and make its rows."""
    txn.put_meta(FOUNDING_META, msgspec.json.encode(founding))
    put_founding(txn, founding)


def put_founding(txn: WriteTransaction, founding: Founding) -> None:
    """Make the rows that the founding alone tells of."""
    txn.put(KEYS, KeyRow(founding.binding, 1))
    for principal in founding.principals:
        txn.put(PRINCIPALS, PrincipalRow(principal))
