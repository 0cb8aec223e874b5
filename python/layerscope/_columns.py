"""Unit and description of every column of a Parquet file.

Parquet keeps them in an Arrow schema, base64 under the key `ARROW:schema`. The schema is a FlatBuffer: tables whose fields are
found by number (https://flatbuffers.dev). polars hands out its bytes.
"""

import base64
import struct
from pathlib import Path

import polars as pl

# Numbers of fields, by Arrow's Message.fbs and Schema.fbs.
MESSAGE_HEADER, SCHEMA_FIELDS, FIELD_NAME, FIELD_METADATA, KEY, VALUE = 2, 1, 0, 6, 0, 1


def columns(path: Path) -> dict[str, dict[str, str]]:
    """By column: `{"unit": …, "description": …}`; nothing where another program wrote the file without them."""
    encoded = pl.read_parquet_metadata(path).get("ARROW:schema")
    if encoded is None:
        return {}
    # Eight bytes come before the message: a marker and the length.
    buffer = _Buffer(base64.b64decode(encoded)[8:])
    schema = buffer.follow(buffer.field(buffer.follow(0), MESSAGE_HEADER))
    return {
        buffer.text(buffer.field(column, FIELD_NAME)): {
            buffer.text(buffer.field(pair, KEY)): buffer.text(buffer.field(pair, VALUE))
            for pair in buffer.tables(buffer.field(column, FIELD_METADATA))
        }
        for column in buffer.tables(buffer.field(schema, SCHEMA_FIELDS))
    }


class _Buffer:
    def __init__(self, data: bytes) -> None:
        self.data = data

    def number(self, kind: str, at: int) -> int:
        value: int = struct.unpack_from("<" + kind, self.data, at)[0]
        return value

    def follow(self, at: int) -> int:
        """Where the offset at this place leads."""
        return at + self.number("I", at)

    def field(self, table: int, index: int) -> int:
        """Where the field of that number lies in a table; 0 where the table lacks it."""
        layout = table - self.number("i", table)
        place = 4 + 2 * index
        offset = self.number("H", layout + place) if place < self.number("H", layout) else 0
        return table + offset if offset else 0

    def tables(self, at: int) -> list[int]:
        """The tables of a list; none where there is no list."""
        if not at:
            return []
        start = self.follow(at)
        return [self.follow(start + 4 + 4 * index) for index in range(self.number("I", start))]

    def text(self, at: int) -> str:
        start = self.follow(at)
        return self.data[start + 4 : start + 4 + self.number("I", start)].decode()
