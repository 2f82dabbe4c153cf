"""Every fenced Python example of the client's documentation runs as it stands there.

The examples of a page run one after the other in one namespace, awaits on the top level included.
What a page leaves out is supplied: the server's address, names that an example uses and none
defines, and tables where an earlier example has dropped its own. Endless loops run once.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import sys
from dataclasses import dataclass
from types import CodeType
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import fluss_df as fluss
from fluss_df.cluster import LocalCluster
from tests.other_peoples import pages

PAGES = pages()
DOCUMENTED_ADDRESS = "127.0.0.1:9123"

EVENTS = pa.schema([("id", pa.int32()), ("name", pa.string()), ("score", pa.float32())])
REGIONS = pa.schema([("id", pa.int32()), ("region", pa.string()), ("value", pa.int64())])
ROWS = {"id": [7, 8], "name": ["Grace", "Heidi"], "score": [1.0, 2.0]}


@dataclass(frozen=True)
class Example:
    page: str
    number: int
    heading: str
    source: str

    def __str__(self) -> str:
        return f"{self.page}-{self.number}-{self.heading}"


def examples(page: str) -> list[Example]:
    text = PAGES[page]
    return [
        Example(page, number, re.findall(r"^#+ (.*)$", text[: m.start()], re.M)[-1], m[1])
        for number, m in enumerate(re.finditer(r"```python\n(.*?)```", text, re.DOTALL))
    ]


ALL = [example for page in ("log-tables", "guide", "api-reference") for example in examples(page)]


class Once(ast.NodeTransformer):
    """Turns ``while True`` into one round."""

    def visit_While(self, node: ast.While) -> ast.AST:
        if isinstance(node.test, ast.Constant) and node.test.value is True:
            once: ast.For = ast.parse("for _ in range(1): pass").body[0]  # type: ignore[assignment]
            once.body = node.body
            return ast.copy_location(once, node)
        return node


def code_of(statement: ast.stmt, example: Example) -> CodeType:
    module = ast.fix_missing_locations(ast.Module([statement], []))
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    made: CodeType = compile(module, str(example), "exec", flags=flags)
    return made


class Page:
    """Runs the examples of a page, one after the other.

    Attributes
    ----------
    problems
        What went wrong in each, or None.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._connection = fluss.connect(address)
        self._admin = self._connection.get_admin()
        self._number = 0
        self.names: dict[str, Any] = {
            "fluss": fluss,
            "pa": pa,
            "pa_table": pa.table(ROWS, EVENTS),
            "record_batch": pa.record_batch(ROWS, EVENTS),
            "df": pd.DataFrame(ROWS),
            "table_descriptor": fluss.TableDescriptor(fluss.Schema(EVENTS)),
            "config": fluss.Config({"bootstrap.servers": address}),
            "conn": self._connection,
            "admin": self._admin,
        }
        self.problems: dict[Example, BaseException | None] = {}

    def close(self) -> None:
        self._connection.close()

    def new_table(self, schema: pa.Schema = EVENTS, **options: Any) -> fluss.TablePath:
        self._number += 1
        path = fluss.TablePath("fluss", f"page{id(self)}_{self._number}")
        self._admin.create_table(path, fluss.TableDescriptor(fluss.Schema(schema), **options))
        if not options.get("partition_keys"):
            self.wait_for_leader(path)
        return path

    def wait_for_leader(self, path: fluss.TablePath) -> None:
        self._admin.list_offsets(path, [0], fluss.OffsetSpec.latest())

    def prepare(self, example: Example, statement: int) -> None:
        """Supply what the page leaves out before a statement of an example."""
        key = (example.page, example.heading, statement)
        if key == ("guide", "Admin Operations", 0):  # the one before closes its connection
            self.names["conn"] = self._connection
        elif key == ("guide", "Tables", 0):
            self._admin.create_database("my_database", ignore_if_exists=True)
        elif key == ("guide", "Offsets", 0):
            self.names["table_path"] = self.new_table(bucket_count=2)
        elif key == ("guide", "Offsets", 2):
            path = self.new_table(REGIONS, partition_keys=["region"], bucket_count=1)
            self._admin.create_partition(path, {"region": "US"})
            self.names["table_path"] = path
        elif key == ("guide", "Writing", 0) and "partition_infos" not in self.names:
            self.names["table_path"] = self.new_table()
        elif key in (("api-reference", "`ScanRecords`", 0), ("api-reference", "`OffsetSpec`", 0)):
            path = self.names["table_path"] = self.new_table()
            table = self._connection.get_table(path)
            with table.new_append().create_writer() as writer:
                writer.write_arrow(self.names["pa_table"])
            self.names["scanner"] = table.new_scan().create_log_scanner()
            self.names["scanner"].subscribe(0, fluss.EARLIEST_OFFSET)

    async def _run_in_loop(self, example: Example) -> None:
        for number, statement in enumerate(ast.parse(example.source).body):
            self.prepare(example, number)
            once = Once().visit(statement)
            result = eval(code_of(once, example), self.names)
            if inspect.iscoroutine(result):
                await result
            if "create_table(" in ast.unparse(statement) and not isinstance(statement, ast.Try):
                path = self.names["table_path"]
                if not self._admin.get_table_info(path).is_partitioned():
                    self.wait_for_leader(path)

    def run(self, example: Example) -> None:
        source = example.source.replace(DOCUMENTED_ADDRESS, self._address)
        example_here = Example(example.page, example.number, example.heading, source)
        try:
            if "asyncio.run(" in source:
                exec(compile(source, str(example), "exec"), {"__name__": "quick_start"})
            else:
                asyncio.run(self._run_in_loop(example_here))
        except Exception as error:
            self.problems[example] = error
        else:
            self.problems[example] = None


@pytest.fixture(scope="module")
def problems(fluss_cluster: LocalCluster) -> dict[Example, BaseException | None]:
    """What went wrong in each example."""
    found: dict[Example, BaseException | None] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "fluss", fluss)
        for name in dict.fromkeys(example.page for example in ALL):
            page = Page(fluss_cluster.bootstrap_servers)
            try:
                for example in examples(name):
                    page.run(example)
            finally:
                page.close()
            found |= page.problems
    return found


@pytest.mark.parametrize("example", ALL, ids=str)
def test_example(example: Example, problems: dict[Example, BaseException | None]) -> None:
    problem = problems[example]
    if problem is not None:
        raise problem


def test_nothing_is_left_out() -> None:
    """Every fence is an example, but the command that installs the package."""
    fences = 0
    for page in ("log-tables", "guide", "api-reference"):
        fences += PAGES[page].count("```") // 2
    assert fences == len(ALL) + 1
