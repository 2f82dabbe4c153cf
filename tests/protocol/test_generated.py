"""The generated messages are what their .proto gives, and run with protobuf 6.31 and later."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import fluss_df

FOLDER = Path(fluss_df.__file__).parent / "protocol"


def generated(out: Path) -> str:
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", "-I.", f"--python_out={out}", "messages.proto"],
        cwd=FOLDER,
        check=True,
        timeout=60,
    )
    return (out / "messages_pb2.py").read_text()


def without_version(code: str) -> str:
    """Leave out which protobuf made it: the tool here is newer than the one that is pinned."""
    code = re.sub(r"(?m)^# Protobuf Python Version: .*$", "", code)
    return re.sub(r"(Domain\.PUBLIC,\s+)\d+,\s+\d+,\s+\d+,", r"\1", code)


def test_up_to_date(tmp_path: Path) -> None:
    committed = (FOLDER / "messages_pb2.py").read_text()
    assert without_version(generated(tmp_path)) == without_version(committed), "run: make proto"


def test_every_proto_is_looked_at() -> None:
    assert [path.name for path in FOLDER.glob("**/*.proto")] == ["messages.proto"]


def test_runs_with_the_oldest_allowed_protobuf() -> None:
    # the runtime refuses code that is newer than itself
    text = (FOLDER / "messages_pb2.py").read_text()
    assert "# Protobuf Python Version: 6.31." in text
