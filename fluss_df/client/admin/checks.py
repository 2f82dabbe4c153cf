"""Checks of the arguments of admin methods, before they become a request."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Mapping
from typing import Final

from fluss_df.errors import ErrorCode, FlussError
from fluss_df.metadata import TableBucket, TablePath
from fluss_df.schema import TableDescriptor

_INT32: Final = 2**31
_INT64: Final = 2**63
# code points that UTF-8 cannot encode
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def whole(value: object, what: str, *, bits: int = 64, least: int | None = None) -> int:
    """Return an integer that fits into ``bits`` bits, and is at least ``least``.

    Raises FlussError for any other value, naming ``what`` it was meant to be.
    """
    limit = _INT64 if bits == 64 else _INT32
    lowest = -limit if least is None else least
    if isinstance(value, int) and not isinstance(value, bool) and lowest <= value < limit:
        return value
    raise FlussError(f"invalid {what} {value!r}: expected an integer from {lowest} to {limit - 1}")


def text(value: object, what: str) -> str:
    """Return a string that is not empty and can be encoded as UTF-8.

    Raises FlussError for any other value, naming ``what`` it was meant to be.
    """
    if isinstance(value, str) and value and not _SURROGATE.search(value):
        return value
    raise FlussError(f"invalid {what} {value!r}: expected a string that is not empty")


def unicode(value: object, what: str) -> str:
    """Return a string that can be encoded as UTF-8, also an empty one.

    Raises FlussError for any other value, naming ``what`` it was meant to be.
    """
    if isinstance(value, str) and not _SURROGATE.search(value):
        return value
    raise FlussError(f"invalid {what} {value!r}: expected a string of Unicode characters")


def descriptor_of(value: object, path: TablePath) -> TableDescriptor:
    """Return a descriptor that servers can keep.

    Raises FlussError for what is none, a comment that is no text, and a key that names a column
    twice.
    """
    if not isinstance(value, TableDescriptor):
        raise FlussError(f"table {path}: invalid descriptor {value!r}: expected a TableDescriptor")
    if value.comment is not None:
        unicode(value.comment, f"comment of table {path}")
    for what, keys in (("partition", value.partition_keys), ("bucket", value.bucket_keys)):
        twice = [key for key in dict.fromkeys(keys) if keys.count(key) > 1]
        if twice:
            raise FlussError(
                f"table {path}: column '{twice[0]}' stands in the {what} key more than once",
                ErrorCode.INVALID_TABLE_EXCEPTION,
            )
    return value


def buckets_of(values: Iterable[TableBucket], what: str) -> list[TableBucket]:
    """Return a list of buckets whose ids the protocol can carry.

    Raises FlussError for values that are not buckets.
    """
    if isinstance(values, TableBucket) or not isinstance(values, Iterable):
        raise FlussError(f"invalid {what} {values!r}: expected a list of TableBucket")
    found = list(values)
    for each in found:
        if not isinstance(each, TableBucket):
            raise FlussError(f"invalid bucket {each!r} in {what}: expected a TableBucket")
        whole(each.table_id, "table id")
        whole(each.bucket_id, "bucket", bits=32)
        if each.partition_id is not None:
            whole(each.partition_id, "partition id")
    return found


def bucket_ids_of(values: Iterable[int]) -> list[int]:
    """Return the numbers of buckets, each once.

    Raises FlussError for anything but a list of integers.
    """
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise FlussError(f"invalid buckets {values!r}: expected a list of numbers, such as [0]")
    found = []
    for each in values:
        try:
            # also those of NumPy
            found.append(operator.index(each))
        except TypeError:
            raise FlussError(f"invalid bucket {each!r}: expected an integer") from None
    return list(dict.fromkeys(found))


def numbers_of_buckets(values: Mapping[TableBucket, int], what: str) -> dict[TableBucket, int]:
    """Return a mapping from buckets to 64-bit integers, such as offsets.

    Raises FlussError for a key that is not a bucket, or a value that is not such an integer.
    """
    if not isinstance(values, Mapping):
        raise FlussError(f"invalid {what} {values!r}: expected a dict of TableBucket to integer")
    found = buckets_of(values, what)
    for each in found:
        number = values[each]
        # the name for messages is made only for a wrong number: there may be 100,000 buckets
        if type(number) is not int or not -_INT64 <= number < _INT64:
            whole(number, f"{what} of {each}")
    return dict(values)


def server_ids(values: Iterable[int]) -> list[int]:
    """Return a list of ids of tablet servers.

    Raises FlussError for anything but a list of 32-bit integers.
    """
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise FlussError(f"invalid tablet servers {values!r}: expected a list of ids, such as [0]")
    return [whole(each, "id of a tablet server", bits=32) for each in values]
