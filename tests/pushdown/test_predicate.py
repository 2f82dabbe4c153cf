import inspect
import operator
import pickle
from collections.abc import Iterator

import numpy as np
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


def test_the_official_names_of_the_operators() -> None:
    x = col("x")
    assert values(x.less_or_equal(2)) == [True, True, None, False]
    assert values(x.greater_or_equal(2)) == [False, True, None, True]
    assert values(x.less_than(2)) == [True, False, None, False]
    assert values(x.greater_than(2)) == [False, False, None, True]
    assert values(x.equal(2)) == [False, True, None, False]
    assert values(x.not_equal(2)) == [True, False, None, True]


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


def test_every_nan_is_nan() -> None:
    """The processor's 0.0 / 0.0 has the bit of the sign, which numpy's NaN has not."""
    other = np.array([0xFFF8_0000_0000_0000], dtype="<u8").view("<f8")[0]
    for kind in (pa.float64(), pa.float32()):
        rows = pa.table({"f": pa.array([other, NAN, 1.0, None, -0.0], pa.float64()).cast(kind)})
        found = evaluate(bind(col("f").is_in([NAN, 0.0]), rows.schema), rows)
        assert found.to_pylist() == [True, True, False, None, True]
        without = evaluate(bind(~col("f").is_in([NAN]), rows.schema), rows)
        assert without.to_pylist() == [False, False, True, None, True]


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


# ---- times whose digits behind microseconds the other side does not have

NANOS = pa.schema({"t": pa.timestamp("ns"), "x": pa.int64()})
TIMES = [None, *(1_000 * us + ns for us in (-1, 0, 1, 2) for ns in (0, 1, 999))]


@pytest.mark.parametrize("us", [-1, 0, 1])
@pytest.mark.parametrize("kind", [pa.timestamp("ns"), pa.time64("ns")], ids=str)
@pytest.mark.parametrize("op", list(ir.Op))
def test_times_are_compared_by_their_microseconds(op: ir.Op, kind: pa.DataType, us: int) -> None:
    schema = pa.schema({"t": kind})
    rows = pa.table({"t": pa.array(TIMES, pa.int64()).cast(kind)})
    cut = pa.table({"t": pa.array([None if t is None else t // 1000 * 1000 for t in TIMES])})
    literal = pa.scalar(us * 1000, pa.int64())
    for invert in (False, True):
        of_cut = ir.compare("t", op, literal)
        of_rows = ir.compare("t", op, literal.cast(kind))
        if invert:
            of_cut, of_rows = ~of_cut, ~of_rows
        wide = evaluation.at_microseconds(of_rows, schema)
        assert evaluate(wide, rows).to_pylist() == evaluate(of_cut, cut).to_pylist()


def test_a_list_of_times_is_compared_by_microseconds() -> None:
    rows = pa.table({"t": pa.array(TIMES, pa.timestamp("ns"))})
    listed = ir.in_("t", pa.array([0, 1000], pa.timestamp("ns")))
    wide = evaluation.at_microseconds(listed | (col("t").is_null()), NANOS)
    found = rows.filter(evaluate(wide, rows)).column("t").cast(pa.int64()).to_pylist()
    assert found == [None, 0, 1, 999, 1000, 1001, 1999]
    empty = ir.in_("t", pa.array([], pa.timestamp("ns")))
    assert evaluation.at_microseconds(empty, NANOS) == empty
    numbers = bind((col("x") == 1) & col("x").is_in([1, 2]), NANOS)
    assert evaluation.at_microseconds(numbers, NANOS) == numbers


@pytest.mark.parametrize("value", [1, 999, 2**63 - 1, (2**63 - 1) // 1000 * 1000])
def test_literals_with_nanoseconds_have_no_such_meaning(value: int) -> None:
    literal = pa.scalar(value, pa.timestamp("ns"))
    with pytest.raises(UnsupportedExpression, match="has nanoseconds"):
        evaluation.at_microseconds(ir.compare("t", ir.Op.EQ, literal), NANOS)
    fits = pa.scalar((2**63 - 1) // 1000 * 1000 - 1000, pa.timestamp("ns"))
    evaluation.at_microseconds(ir.compare("t", ir.Op.EQ, fits), NANOS)


# ---- literals

INF = float("inf")


@pytest.mark.parametrize("op", list(ir.Op))
@pytest.mark.parametrize("literal", [NAN, INF, -INF, 0.0, 1.5])
def test_nan_is_the_largest_number_and_equals_itself(op: ir.Op, literal: float) -> None:
    def order(number: float) -> tuple[bool, float]:
        return (True, 0.0) if number != number else (False, number)

    numbers = [NAN, INF, -INF, -0.0, 0.0, 1.5, None]
    rows = pa.table({"f": pa.array(numbers, pa.float64())})
    compared = getattr(operator, op.name.lower())
    expected = [None if x is None else compared(order(x), order(literal)) for x in numbers]
    predicate = ir.compare("f", op, pa.scalar(literal))
    assert evaluate(predicate, rows).to_pylist() == expected


@pytest.mark.parametrize(
    ("kind", "given", "fits"),
    [
        (pa.int8(), 127, True),
        (pa.int8(), 128, False),
        (pa.int64(), 1.0, True),
        (pa.int64(), 1.5, False),
        (pa.float32(), 0.5, True),
        (pa.float32(), 0.1, False),
        (pa.float32(), NAN, True),
        (pa.decimal128(5, 2), pa.scalar(1, pa.decimal128(5, 0)), True),
        (pa.string(), b"a", False),
        (pa.string(), pa.scalar("a", pa.large_string()), True),
        (pa.binary(), pa.scalar(b"a", pa.large_binary()), True),
        (pa.timestamp("ms"), pa.scalar(1_000_000, pa.timestamp("ns")), True),
        (pa.timestamp("ms"), pa.scalar(1_000_001, pa.timestamp("ns")), False),
        (pa.int64(), None, True),
    ],
    ids=str,
)
def test_a_literal_is_bound_where_no_digit_is_lost(
    kind: pa.DataType, given: object, fits: bool
) -> None:
    schema = pa.schema({"c": kind})
    literal = given if isinstance(given, pa.Scalar) else pa.scalar(given)
    if not fits:
        with pytest.raises(UnsupportedExpression, match=r"'c' is .* give a value"):
            evaluation.exactly("c", [literal], schema)
        with pytest.raises(UnsupportedExpression, match=r"'c' is .* give a value"):
            bind(col("c") == literal, schema)
        return
    bind(col("c") == literal, schema)
    (found,) = evaluation.exactly("c", [literal], schema)
    assert found.type == kind
    assert found.is_valid == literal.is_valid


def test_a_nested_column_cannot_be_compared_but_may_be_null() -> None:
    schema = pa.schema({"tags": pa.list_(pa.int64()), "n": pa.int64()})
    for predicate in (col("tags") == 1, col("tags").is_in([1])):
        with pytest.raises(UnsupportedExpression, match=r"'tags' .* cannot be compared"):
            bind(predicate, schema)
    bind(col("tags").is_null(), schema)
    with pytest.raises(UnsupportedExpression, match="'n' is int64, not a string"):
        bind(col("n").starts_with("a"), schema)


def test_references_to_columns_say_what_is_wrong() -> None:
    with pytest.raises(FlussError, match="takes the name of a column, not 7"):
        col(7)  # type: ignore[arg-type]
    assert repr(col("x")) == "col('x')"
    with pytest.raises(UnsupportedExpression, match="the values for column 'x'"):
        col("x").is_in([1, "a"])
    with pytest.raises(UnsupportedExpression, match="is no literal"):
        col("x") == object()  # noqa: B015
    with pytest.raises(FlussError, match="expected a predicate, not True"):
        (col("x") > 1) & True  # type: ignore[operator]
    with pytest.raises(FlussError, match="invalid closed='neither'"):
        col("x").between(1, 2, closed="neither")
    assert values(col("x").not_in([1, 2])) == [False, False, None, True]
    array = pa.array([5], pa.int64())
    assert values(col("x").is_in(array)) == [False, False, None, True]


@pytest.mark.parametrize(
    ("closed", "expected"),
    [
        ("both", [True, True, None, True]),
        ("left", [True, True, None, False]),
        ("right", [False, True, None, True]),
        ("none", [False, True, None, False]),
    ],
)
def test_a_range_has_the_ends_that_are_named(closed: str, expected: list[bool | None]) -> None:
    assert values(col("x").between(1, 5, closed=closed)) == expected


def test_combinations_are_no_more_than_allowed() -> None:
    arrays = [pa.array([1, 2]), pa.array(["a", "b", "c"])]
    made = evaluation.combinations(arrays, 6)
    assert made is not None
    pairs = list(zip(*(array.to_pylist() for array in made), strict=True))
    assert pairs == [(x, y) for x in (1, 2) for y in "abc"]
    assert evaluation.combinations(arrays, 5) is None


@pytest.mark.parametrize(
    ("predicate", "found"),
    [
        (col("x") == 1, [1]),
        (col("x") > 1, None),
        (col("s") == "a", None),
        ((col("x") == 1) | (col("x") == 2), [1, 2]),
        ((col("x") == 1) | (col("s") == "a"), None),
        (col("x").is_in([1, 2, 3]) & col("x").is_in([2, 3, 4]), [2, 3]),
        ((col("x") == 1) & (col("s") == "a"), [1]),
        (~(col("x") == 1), None),
        (col("x").is_null(), None),
    ],
    ids=str,
)
def test_values_that_a_column_must_have(predicate: Predicate, found: list[int] | None) -> None:
    chosen = selected_values([bind(predicate, ROWS.schema)], "x")
    assert (None if chosen is None else chosen.to_pylist()) == found


def test_long_lists_are_shown_in_part() -> None:
    assert str(col("x").is_in(range(8))) == "x in (0, 1, 2, 3, 4, 5, 6, 7)"
    assert str(col("x").is_in(range(9))) == "x in (0, 1, 2, 3, 4, 5, 6, 7, ... 1 more)"
    both = (col("x") == 1) | (col("x") == 2)
    assert str(both & (col("s") == "a")) == "(x == 1 or x == 2) and s == 'a'"
    assert str(~both) == "not (x == 1 or x == 2)"
    assert str(Constant(None)) == "null"


def test_of_one_operand_it_is_that_one_and_of_none_a_constant() -> None:
    one = col("x") > 1
    assert ir.or_([one]) == ir.and_([one]) == one
    assert ir.or_([Constant(False), one]) == ir.and_([Constant(True), one]) == one
    assert ir.or_([]) == ir.or_([Constant(False)]) == Constant(False)
    assert ir.and_([]) == Constant(True)
