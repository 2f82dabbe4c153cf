"""What the guide shows runs as it stands there, and prints what it says."""

import contextlib
import io
import re
from pathlib import Path

import pytest

GUIDE = Path(__file__).parents[2] / "docs" / "ibis.md"


def test_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    examples = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert len(examples) == 10
    names: dict[str, object] = {}
    for example in examples:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(example, "ibis.md", "exec"), names)
        for promised in re.findall(r"print\(.*\)  # (.*)", example):
            assert promised in printed.getvalue()
        assert printed.getvalue().strip(), example
