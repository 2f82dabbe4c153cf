"""Settings of a cluster: what may be changed while it runs, and to what."""

from __future__ import annotations

import pytest

from fluss_df.engine.catalog.cluster_configs import RATE_LIMIT, altered_configs
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.protocol import messages_pb2 as pb

SET, DELETE, APPEND, SUBTRACT = range(4)


def change(key: str, value: str | None = None, kind: int = SET) -> pb.AlterConfig:
    return pb.AlterConfig(config_key=key, config_value=value, op_type=kind)


@pytest.mark.parametrize(
    ("wrong", "code", "message"),
    [
        (change(RATE_LIMIT, "1mb", 9), -1, "Unsupported AlterConfigOpType: 9"),
        (change("table.log.ttl", "1d"), 0, "key table.log.ttl is not allowed to be changed"),
        (change("x" * 1000, "1"), 0, r"key x{1,250}\D*is not allowed"),
        (change(RATE_LIMIT, "1mb", APPEND), 0, "Unsupported config operation type APPEND"),
        (change(RATE_LIMIT, "1mb", SUBTRACT), 0, "Unsupported config operation type SUBTRACT"),
        (change(RATE_LIMIT), 0, f"The config key {RATE_LIMIT} is set without a value"),
        (change(RATE_LIMIT, "fast"), 0, "Cannot parse 'fast' as MemorySize"),
        (change(RATE_LIMIT, "9" * 300 + "b"), 0, "as MemorySize"),
        (change(RATE_LIMIT, "9223372036854775807kb"), 0, "as MemorySize"),
        (change("datalake.format", "delta"), 0, "Cannot parse 'delta' as DataLakeFormat"),
        (change("datalake.format", "Paimon"), -1, "for datalake format: paimon.*is not configured"),
        (change("datalake.iceberg.uri", "x"), 0, "Invalid configuration 'datalake.iceberg.uri'"),
    ],
    ids=range(12),
)
def test_what_cannot_be_changed_changes_nothing(
    wrong: pb.AlterConfig, code: int, message: str
) -> None:
    good = change(RATE_LIMIT, "2mb")
    configs = {RATE_LIMIT: "1mb"}
    for changes in ([wrong], [good, wrong]):
        with pytest.raises(FlussError, match=message) as refused:
            altered_configs(configs, changes)
        assert refused.value.error_code == (code or ErrorCode.CONFIG_EXCEPTION)
    assert configs == {RATE_LIMIT: "1mb"}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([], {}),
        ([change(RATE_LIMIT, "2 MB")], {RATE_LIMIT: "2 MB"}),
        ([change(RATE_LIMIT, "1mb")], {}),
        ([change(RATE_LIMIT, "5 bytes"), change(RATE_LIMIT, "6tb")], {RATE_LIMIT: "6tb"}),
        ([change(RATE_LIMIT, None, DELETE)], {RATE_LIMIT: None}),
        ([change(RATE_LIMIT, "2mb"), change(RATE_LIMIT, None, DELETE)], {RATE_LIMIT: None}),
        ([change(RATE_LIMIT, None, DELETE), change(RATE_LIMIT, "1mb")], {}),
        ([change("datalake.format", None, DELETE)], {}),
    ],
    ids=range(8),
)
def test_what_changes(changes: list[pb.AlterConfig], expected: dict[str, str | None]) -> None:
    assert altered_configs({RATE_LIMIT: "1mb"}, changes) == expected
