"""Reading what the W&B client leaves in a run folder: run-ID.wandb, as the pinned client writes it.

Seven bytes of header, then LevelDB's log format (its doc/log_format.md): blocks of 32,768 bytes with pieces of records,
each crc32 (4 bytes, little endian, of type and data) · length (2) · type (1: full, 2: first, 3: middle, 4: last) ·
data.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wandb.proto.wandb_internal_pb2 import Record

MAGIC = b":W&"
HEADER = 7
BLOCK = 32_768
PIECE = struct.Struct("<IHB")
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def records(path: Path) -> Iterator[Record]:
    """The records of a .wandb file in order; what a killed client left unfinished at its end is no record."""
    data = path.read_bytes()
    assert data[:3] == MAGIC, f"{path} is no W&B file"
    at, held = HEADER, b""
    while at + PIECE.size <= len(data):
        if BLOCK - at % BLOCK < PIECE.size:  # no room for a piece: the block ends in zeros
            at += BLOCK - at % BLOCK
            continue
        check, length, kind = PIECE.unpack_from(data, at)
        piece = data[at + PIECE.size : at + PIECE.size + length]
        if len(piece) < length or kind not in (FULL, FIRST, MIDDLE, LAST):
            return
        assert zlib.crc32(bytes([kind]) + piece) == check, f"{path}: damaged at byte {at}"
        held = piece if kind in (FULL, FIRST) else held + piece
        if kind in (FULL, LAST):
            yield Record.FromString(held)
        at += PIECE.size + length


def rows(path: Path) -> list[dict[str, Any]]:
    """What `run.log` was given, a dict for each call; the keys of nested values are joined by dots."""
    found = []
    for record in records(path):
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            found.append({item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items})
    return found


def run_ids(path: Path) -> set[str]:
    """The ids of the runs that the file's records are about."""
    return {record.run.run_id for record in records(path) if record.WhichOneof("record_type") == "run"}
