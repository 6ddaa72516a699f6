"""CloudEvents attributes in the headers of records, for tools that route or show events; no stage reads them.

Binary content mode of "Kafka Protocol Binding for CloudEvents", 1.0.2: each attribute is a header `ce_NAME`, the value
is the record alone.
"""

import os
from typing import Final

from rollstream.bus.message import Headers

PREFIX: Final = "ce_"
_SPECIFICATION: Final = (f"{PREFIX}specversion", b"1.0")
_ID_BYTES: Final = 16


def attributes(run: str, record: str) -> Headers:
    """The four that every event must have. `record` is the name of its type, and no two events share an id."""
    return (
        _SPECIFICATION,
        (f"{PREFIX}id", os.urandom(_ID_BYTES).hex().encode()),
        (f"{PREFIX}source", f"/rollstream/{run}".encode()),
        (f"{PREFIX}type", f"rollstream.{record}".encode()),
    )
