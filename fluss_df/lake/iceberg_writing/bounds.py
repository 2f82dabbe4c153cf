"""The statistics of a data file in its manifest: counts, least and greatest values of columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pyiceberg.io.pyarrow import (
    MetricModeTypes,
    MetricsMode,
    StatisticsCollector,
    StatsAggregator,
    data_file_statistics_from_parquet_metadata,
)
from pyiceberg.schema import Schema, _SanitizeColumnsVisitor, visit
from pyiceberg.types import (
    DateType,
    IcebergType,
    MapType,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)

if TYPE_CHECKING:
    import pyarrow.parquet as pq
    from pyiceberg.io.fileformat import DataFileStatistics

# Python's dates and times have a smaller range than those of tables, so their numbers are used
_MOMENTS: Final = (DateType, TimestampType, TimestamptzType)
_BOUNDED: Final = (MetricModeTypes.FULL, MetricModeTypes.TRUNCATE)
_COUNTED: Final = MetricsMode(MetricModeTypes.COUNTS)
# An upper bound of texts is a cut-off text whose last character is raised by one. Raising U+D7FF
# gives a surrogate, which is not a character: U+E000 comes after all of these.
_SURROGATE: Final = "\ud800"
_BEHIND_SURROGATES: Final = "\ue000"


class _FileNames(_SanitizeColumnsVisitor):
    """As Iceberg's writers name columns in files; two columns never get the same name."""

    def struct(
        self, struct: StructType, field_results: list[IcebergType | None]
    ) -> IcebergType | None:
        fields: list[Any] = [field for field in field_results if field is not None]
        both = list(zip(struct.fields, fields, strict=True))
        # names that need no replacement: other readers look for these columns by the same names
        taken = {new.name for old, new in both if old.name == new.name}
        for at, (old, new) in enumerate(both):
            name = new.name
            while old.name != new.name and name in taken:
                name += "_"
            taken.add(name)
            if name != new.name:
                fields[at] = new.model_copy(update={"name": name})
        return StructType(*fields)

    def map(
        self, map_type: MapType, key_result: IcebergType | None, value_result: IcebergType | None
    ) -> IcebergType | None:
        # fields of rows that are keys of maps keep their names: Polars does not find these by ids
        return super().map(map_type, map_type.key_type, value_result)


def file_schema(schema: Schema) -> Schema:
    """Return the schema of a table with the names that its columns have in files."""
    found: Any = visit(schema.as_struct(), _FileNames())
    return Schema(*found.fields, schema_id=schema.schema_id)


def file_statistics(
    metadata: pq.FileMetaData, plan: Mapping[int, StatisticsCollector], ids: Mapping[str, int]
) -> DataFileStatistics:
    """Return the counts and bounds of the columns of a file that was written.

    A column has bounds only where they are those of all its values: Parquet's own leave out texts
    of more than 4 kB.
    """
    moments = {
        number: one
        for number, one in plan.items()
        if isinstance(one.iceberg_type, _MOMENTS) and one.mode.type in _BOUNDED
    }
    counted = {number: replace(one, mode=_COUNTED) for number, one in moments.items()}
    found = data_file_statistics_from_parquet_metadata(metadata, {**plan, **counted}, dict(ids))
    bounds: dict[int, StatsAggregator] = found.column_aggregates
    unknown: set[int] = set()
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        for column in map(group.column, range(metadata.num_columns)):
            number, statistics = ids[column.path_in_schema], column.statistics
            if statistics is None:
                unknown.add(number)
            elif not statistics.has_min_max:
                if not statistics.has_null_count or statistics.null_count < column.num_values:
                    unknown.add(number)
            elif number in moments:
                kind = statistics.physical_type
                bound = bounds.setdefault(
                    number, StatsAggregator(moments[number].iceberg_type, kind)
                )
                bound.update_min(statistics.min_raw)
                bound.update_max(statistics.max_raw)
    for number in unknown:
        bounds.pop(number, None)
    for bound in bounds.values():
        _without_surrogates(bound)
    return found


def _without_surrogates(bound: StatsAggregator) -> None:
    """Have the upper bound of texts be one where the character behind its last is none."""
    length, text = bound.trunc_length, bound.current_max
    if bound.primitive_type != StringType() or length is None or not isinstance(text, str):
        return
    from pyiceberg.utils.truncate import truncate_upper_bound_text_string

    cut = truncate_upper_bound_text_string(text, length)
    if cut is not None and _SURROGATE in cut:
        bound.current_max = cut.replace(_SURROGATE, _BEHIND_SURROGATES)
