import inspect
import pickle
from collections.abc import Iterator

import pyarrow as pa
import pytest

from fluss_df.errors import FlussError
from fluss_df.pushdown import evaluate as evaluation
from fluss_df.pushdown import predicate as ir
from fluss_df.pushdown.column import col
from fluss_df.pushdown.evaluate import bind, evaluate, filter_rows, project, selected_values
from fluss_df.pushdown.predicate import Constant, Predicate, UnsupportedExpression, conjuncts

NAN = float("nan")
ROWS = pa.table(
    {
        "x": pa.array([1, 2, None, 5], pa.int64()),
        "f": pa.array([0.5, NAN, None, -0.0], pa.float64()),
        "s": ["abc", "bcd", None, ""],
        "b": [True, False, None, True],
    }
)


def values(predicate: Predicate) -> list[bool | None]:
    found: list[bool | None] = evaluate(bind(predicate, ROWS.schema), ROWS).to_pylist()
    return found


def nodes() -> Iterator[type[Predicate]]:
    for _, kind in inspect.getmembers(ir, inspect.isclass):
        if issubclass(kind, Predicate) and kind is not Predicate:
            yield kind


def test_null_is_neither_true_nor_false() -> None:
    assert values(col("x") > 1) == [False, True, None, True]
    assert values(~(col("x") > 1)) == [True, False, None, False]
    assert values(col("x") == None) == [None] * 4  # noqa: E711
    assert values(col("x").is_null()) == [False, False, True, False]
    assert values(col("x").is_not_null()) == [True, True, False, True]


def test_and_or_follow_kleene() -> None:
    null = Constant(None)
    rows = pa.table({"x": [0]})
    for left, right, both, either in [
        (null, Constant(False), False, None),
        (null, Constant(True), None, True),
        (null, null, None, None),
    ]:
        assert evaluate(ir.And((left, right)), rows).to_pylist() == [both]
        assert evaluate(ir.Or((right, left)), rows).to_pylist() == [either]


def test_nan_equals_itself_and_is_the_greatest() -> None:
    assert values(col("f") == NAN) == [False, True, None, False]
    assert values(col("f") != NAN) == [True, False, None, True]
    assert values(col("f") < NAN) == [True, False, None, True]
    assert values(col("f") <= NAN) == [True, True, None, True]
    assert values(col("f") > NAN) == [False, False, None, False]
    assert values(col("f") >= NAN) == [False, True, None, False]
    assert values(col("f") > 1.0) == [False, True, None, False]
    assert values(col("f") == 0.0) == [False, False, None, True]
    assert values(col("f").is_in([0.0, NAN])) == [False, True, None, True]


def test_in_ignores_nulls_among_its_values() -> None:
    assert values(col("x").is_in([1, None])) == [True, False, None, False]
    assert values(col("x").is_in([])) == [False, False, None, False]


def test_text_matches() -> None:
    assert values(col("s").starts_with("ab")) == [True, False, None, False]
    assert values(col("s").ends_with("cd")) == [False, True, None, False]
    assert values(col("s").contains("bc")) == [True, True, None, False]
    assert values(col("s").contains("")) == [True, True, None, True]


def test_between() -> None:
    assert str(col("x").between(1, 5)) == "x >= 1 and x <= 5"
    assert str(col("x").between(1, 5, closed="none")) == "x > 1 and x < 5"
    with pytest.raises(FlussError, match="closed='no'"):
        col("x").between(1, 5, closed="no")


def test_text_of_a_predicate_is_stable() -> None:
    p = (col("x") >= 1) & (~col("s").is_null() | (col("s") == "it's")) & ~col("x").is_in(range(10))
    assert str(p) == (
        'x >= 1 and (not s is null or s == "it\'s") and '
        "not x in (0, 1, 2, 3, 4, 5, 6, 7, ... 2 more)"
    )
    assert str(~((col("b") == True) | (col("x") < 2))) == "not (b == true or x < 2)"  # noqa: E712


def test_predicates_pickle_and_compare() -> None:
    p = (col("x") >= 1) & col("s").is_in(["a", "b"]) | ~col("s").contains("c")
    again = pickle.loads(pickle.dumps(p))
    assert again == p
    assert hash(again) == hash(p)
    assert again != (col("x") >= 2)


def test_a_predicate_has_no_truth_value() -> None:
    with pytest.raises(FlussError, match=r"combine predicates with & \| ~"):
        bool(col("x") > 1)
    with pytest.raises(FlussError, match="expected a predicate"):
        (col("x") > 1) & True  # type: ignore[operator]


def test_every_kind_of_node_has_a_method_in_every_visitor() -> None:
    kinds = list(nodes())
    assert len(kinds) == 9
    methods = ir.PredicateVisitor.__abstractmethods__
    assert len(methods) == len(kinds)

    class Incomplete(ir.PredicateVisitor[int]):
        pass

    with pytest.raises(TypeError, match="abstract"):
        Incomplete()  # type: ignore[abstract]


def test_conjuncts_are_flat() -> None:
    p = (col("x") > 1) & ((col("x") < 5) & (col("s") == "a"))
    assert [str(c) for c in conjuncts(p)] == ["x > 1", "x < 5", "s == 'a'"]


def test_bind_takes_only_what_the_type_can_hold() -> None:
    schema = pa.schema({"i": pa.int8(), "d": pa.decimal128(5, 2), "t": pa.timestamp("s")})
    bound = bind(col("i") == 7, schema)
    assert isinstance(bound, ir.Comparison)
    assert bound.literal.type == pa.int8()
    for wrong in (col("i") == 300, col("i") == "7", col("i") == 1.5, col("d") == 1.001):
        with pytest.raises(UnsupportedExpression, match="cannot be compared with"):
            bind(wrong, schema)
    with pytest.raises(FlussError, match=r"table a\.b: column 'j' does not exist; there are i"):
        bind(col("j") == 1, schema, what="table a.b:")


def test_bind_refuses_nested_columns_and_matches_of_numbers() -> None:
    schema = pa.schema({"l": pa.list_(pa.int8()), "i": pa.int8()})
    with pytest.raises(UnsupportedExpression, match="column 'l'"):
        bind(col("l") == 1, schema)
    with pytest.raises(UnsupportedExpression, match="not a string"):
        bind(col("i").contains("1"), schema)
    assert str(bind(col("l").is_null(), schema)) == "l is null"


def test_filter_rows_keeps_the_kind() -> None:
    p = bind(col("x") > 1, ROWS.schema)
    assert filter_rows(p, ROWS)["x"].to_pylist() == [2, 5]
    batch = ROWS.to_batches()[0]
    kept = filter_rows(p, batch)
    assert isinstance(kept, pa.RecordBatch)
    assert kept["x"].to_pylist() == [2, 5]


def test_project_is_implied_by_the_predicate() -> None:
    p = ((col("k") == 1) & (col("x") > 5)) | ((col("k") == 2) & (col("y") > 5))
    assert str(project(p, ["k"])) == "k == 1 or k == 2"
    assert project((col("k") == 1) | (col("x") == 1), ["k"]) == Constant(True)
    assert str(project(~((col("k") == 1) | (col("x") == 1)), ["k"])) == "k != 1"
    assert str(project(~~(col("k") == 1), ["k"])) == "k == 1"
    assert project(~(col("x").is_in([1])), ["k"]) == Constant(True)


def test_selected_values() -> None:
    k, j = col("k"), col("j")
    both = [(k == 1) | k.is_in([2, 3]) | ((k == 4) & (j == 1)), k.is_in([2, 4, 9])]
    found = selected_values(both, "k")
    assert found is not None
    assert found.to_pylist() == [2, 4]
    assert selected_values([(k == 1) | (j == 1)], "k") is None
    assert selected_values([k > 1], "k") is None


def test_evaluation_does_not_depend_on_chunks() -> None:
    chunked = pa.concat_tables([ROWS.slice(0, 1), ROWS.slice(1, 0), ROWS.slice(1)])
    p = bind((col("x") > 1) | (col("f") == NAN) | Constant(None), ROWS.schema)
    assert evaluate(p, chunked).to_pylist() == evaluate(p, ROWS).to_pylist()
    assert evaluation.evaluate(p, ROWS.slice(0, 0)).to_pylist() == []


def test_no_truth_value_is_a_type_error_too() -> None:
    for thing in (col("id"), col("id") > 1):
        for kind in (TypeError, FlussError):
            with pytest.raises(kind, match="no truth value"):
                bool(thing)
