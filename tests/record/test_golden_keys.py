"""Keys, buckets and partition names against Fluss's own Java code, and the official client."""

from __future__ import annotations

import base64
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fluss_df.errors import FlussError
from fluss_df.record.keys.bucketing import bucket_ids
from fluss_df.record.keys.keys import encode_keys
from fluss_df.record.keys.partition_names import PARTITION_TYPES, partition_names, partition_scalars
from fluss_df.record.layout.bytes_columns import Keys
from fluss_df.record.rows.single import key_encoder
from fluss_df.types import Column, DataType, TypeRoot, from_arrow, to_arrow, type_from_json

GOLDEN = Path(__file__).parent / "golden"
ENTRIES = json.loads((GOLDEN / "java.json").read_text())
LAKES = {"fluss": None, "paimon": "paimon", "iceberg": "iceberg"}


def value_array(t: DataType, text: str) -> pa.Array:
    """Return the value that Golden.java wrote as text."""
    target = to_arrow(t)
    root = t.root
    if root is TypeRoot.BOOLEAN:
        return pa.array([text == "true"])
    if root in (TypeRoot.STRING, TypeRoot.CHAR):
        return pa.array([text])
    if root in (TypeRoot.BYTES, TypeRoot.BINARY):
        return pa.array([bytes.fromhex(text)], target)
    if root is TypeRoot.DECIMAL:
        return pa.array([Decimal(text)], target)
    if root in (TypeRoot.FLOAT, TypeRoot.DOUBLE):
        return pa.array([float(text)], target)
    if root is TypeRoot.DATE:
        return pa.array([int(text)], pa.int32()).cast(target)
    if root is TypeRoot.TIME_WITHOUT_TIME_ZONE:
        return pa.array([int(text)], pa.time32("ms")).cast(target)
    if "," in text:
        millis, nanos = map(int, text.split(","))
        whole = millis * 10**6 + nanos
        return pa.array([whole], pa.int64()).cast(pa.timestamp("ns", target.tz)).cast(target)
    return pa.array([int(text)], target)


def cases() -> list[Any]:
    return [
        pytest.param(entry, id=f"{i}-{entry['types'][0]['type']}")
        for i, entry in enumerate(ENTRIES)
    ]


@pytest.mark.parametrize("entry", cases())
@pytest.mark.parametrize("lake", LAKES)
def test_key_and_bucket_are_those_of_java(entry: dict[str, Any], lake: str) -> None:
    types = [type_from_json(t) for t in entry["types"]]
    columns = [value_array(t, v) for t, v in zip(types, entry["values"], strict=True)]
    if entry[lake] is None:
        with pytest.raises(FlussError):
            encode_keys(columns, types, LAKES[lake])
        return
    key, bucket = entry[lake]
    keys = encode_keys(columns, types, LAKES[lake])
    assert keys[0].hex() == key
    assert bucket_ids(keys, 16, LAKES[lake]).tolist() == [bucket]


def test_keys_alone_are_those_of_java() -> None:
    encoded: set[TypeRoot] = set()
    for entry in ENTRIES:
        types = [type_from_json(t) for t in entry["types"]]
        encode = key_encoder([Column(str(i), t) for i, t in enumerate(types)], None)
        if encode is None or entry["fluss"] is None:
            continue
        try:
            columns = [value_array(t, v) for t, v in zip(types, entry["values"], strict=True)]
            key = encode([column[0].as_py() for column in columns])
        except (ValueError, OverflowError):
            # Python has no such date or moment
            continue
        if key is not None:
            assert key.hex() == entry["fluss"][0]
            encoded.update(t.root for t in types)
    assert encoded == PARTITION_TYPES | {TypeRoot.DECIMAL}


@pytest.mark.parametrize("lake", LAKES)
def test_many_rows_at_once_are_the_same_as_one_by_one(lake: str) -> None:
    groups: dict[str, list[dict[str, Any]]] = {}
    for entry in ENTRIES:
        if entry[lake] is not None:
            groups.setdefault(json.dumps(entry["types"]), []).append(entry)
    for text, entries in groups.items():
        types = [type_from_json(t) for t in json.loads(text)]
        columns = [
            # a filler row before, so that the arrays have an offset
            pa.concat_arrays([value_array(t, e["values"][i]) for e in [entries[0], *entries]])[1:]
            for i, t in enumerate(types)
        ]
        keys = encode_keys(columns, types, LAKES[lake])
        assert [keys[i].hex() for i in range(len(keys))] == [e[lake][0] for e in entries]
        assert bucket_ids(keys, 16, LAKES[lake]).tolist() == [e[lake][1] for e in entries]


@pytest.mark.parametrize("entry", [e for e in ENTRIES if e.get("partition")])
def test_partition_name_is_that_of_java_and_reads_back(entry: dict[str, Any]) -> None:
    t = type_from_json(entry["types"][0])
    array = value_array(t, entry["values"][0])
    try:
        [name] = partition_names([array], [t]).to_pylist()
    except FlussError as error:
        # what Fluss itself refuses to create
        assert "cannot name a partition" in str(error)  # noqa: PT017
        assert (
            len(entry["partition"]) > 200
            or not entry["partition"].replace("_", "a").replace("-", "a").isalnum()
            or not entry["partition"].isascii()
        )
        return
    # Java before 19 prints some floats with a digit more than they need
    longer = {"1_1754944E-38": "1_17549435E-38"}
    assert longer.get(name, name) == entry["partition"]
    [scalar] = partition_scalars(name, [Column("p", t)])
    assert scalar.equals(array[0]) or entry["values"][0] == "NaN"


def test_the_official_client_agrees_but_for_tail_bytes_from_128_on() -> None:
    """It mixes the bytes behind the last whole block unsigned, Java signed: see bucketing."""
    entries = json.loads((GOLDEN / "buckets.json").read_text())
    differing = 0
    for entry in entries.values():
        table = pa.ipc.open_stream(base64.b64decode(entry["ipc"])).read_all()
        kind = from_arrow(table.schema.field(0).type, nullable=False)
        keys = encode_keys([table.column(0)], [kind])
        assert bucket_ids(keys, 16, unsigned_tail=True).tolist() == entry["buckets"]
        ours = bucket_ids(keys, 16).tolist()
        for row, (a, b) in enumerate(zip(ours, entry["buckets"], strict=True)):
            key = keys[row]
            tail = key[len(key) // 4 * 4 :]
            assert a == b or max(tail) >= 128
            differing += a != b
    assert differing


@pytest.mark.parametrize(
    ("lake", "buckets"),
    [(None, [1, 0, 6, 6]), ("lance", [1, 0, 6, 6]), ("paimon", [1, 11, 12, 0]),
     ("iceberg", [3, 4, 12, 3])],
)  # fmt: skip
def test_constants_of_the_unit_tests_of_fluss(lake: str | None, buckets: list[int]) -> None:
    raw = [
        (b"\x00\x0a", 7),
        (b"\x00\x0a\x0a\x0a", 12),
        (b"2bb87d68-baf9-4e64-90f9-f80910419fa6", 16),
        (b"The quick brown fox jumps over the lazy dog", 8),
    ]
    for (key, count), bucket in zip(raw, buckets, strict=True):
        keys = Keys(np.frombuffer(key, np.uint8), np.array([0, len(key)], np.int64))
        assert bucket_ids(keys, count, lake).tolist() == [bucket]
