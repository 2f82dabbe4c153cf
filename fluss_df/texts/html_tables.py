"""Tables of HTML for notebooks: what ``_repr_html_`` of plans, reports, schemas and runs returns.

Names and texts are escaped, cut where they are long, and listed up to a number: what is shown stays
small, whatever a table has. There are no colours, so that the tables look right in light and in
dark notebooks, and no scripts or addresses.
"""

from __future__ import annotations

import html
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from fluss_df.texts.secret_texts import shown_option

#: How many rows of a table are shown, at the most.
MOST_ROWS: Final = 50
#: How many characters of a text are shown, at the most.
MOST_CHARACTERS: Final = 300

# without these classes Jupyter takes text between two $ for a formula; partition names have $
_TABLE: Final = '<table class="tex2jax_ignore mathjax_ignore">'
_CAPTION: Final = '<caption style="caption-side:top;text-align:left;white-space:normal">'
_LEFT: Final = ' style="text-align:left"'
_RIGHT: Final = ' style="text-align:right"'
# characters that cannot be seen, or that change the direction of the text after them
_UNSHOWN: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    "\ufff0-\ufffb\ud800-\udfff\U000e0000-\U000e0fff]"
)


def text(value: object) -> str:
    """Return a value as text of HTML.

    Examples
    --------
    >>> text("<b>"), text(1234567), text(None), text(True)
    ('&lt;b&gt;', '1,234,567', '', 'yes')
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    shown = f"{value:.3f}" if isinstance(value, float) else str(value)
    if len(shown) > MOST_CHARACTERS:
        shown = f"{shown[:MOST_CHARACTERS]}… {len(shown) - MOST_CHARACTERS:,} more characters"
    return html.escape(_UNSHOWN.sub("\ufffd", shown))


def table(
    caption: object, headings: Sequence[str], rows: Iterable[Sequence[object]], count: int
) -> str:
    """Return a table of HTML.

    ``caption`` is shown above it, None for nothing. Of ``rows``, only the first :data:`MOST_ROWS`
    are taken; ``count`` is how many there are.
    """
    parts = [_TABLE, *_captioned(caption), "<thead><tr>"]
    parts += [f'<th scope="col"{_LEFT}>{text(heading)}</th>' for heading in headings]
    parts.append("</tr></thead><tbody>")
    for row in itertools.islice(rows, MOST_ROWS):
        cells = "".join(f"<td{_aligned(value)}>{text(value)}</td>" for value in row)
        parts.append(f"<tr>{cells}</tr>")
    if count > MOST_ROWS:
        more = f"… {count - MOST_ROWS:,} more"
        parts.append(f'<tr><td colspan="{len(headings)}"{_LEFT}>{more}</td></tr>')
    parts.append("</tbody></table>")
    return "".join(parts)


def pairs(caption: object, values: Mapping[str, object]) -> str:
    """Return a table of names and their values; what is None is left out."""
    found = {name: value for name, value in values.items() if value is not None}
    parts = [_TABLE, *_captioned(caption), "<tbody>"]
    for name, value in itertools.islice(found.items(), MOST_ROWS):
        heading = f'<th scope="row"{_LEFT}>{text(name)}</th>'
        parts.append(f"<tr>{heading}<td{_LEFT}>{text(value)}</td></tr>")
    if len(found) > MOST_ROWS:
        parts.append(f'<tr><td colspan="2"{_LEFT}>… {len(found) - MOST_ROWS:,} more</td></tr>')
    parts.append("</tbody></table>")
    return "".join(parts)


def _captioned(caption: object) -> list[str]:
    return [] if caption is None else [f"{_CAPTION}{text(caption)}</caption>"]


def _aligned(value: object) -> str:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return _RIGHT if number else _LEFT


# ---- schemas, and what servers say of tables: seen from below, so their types are not named here


def schema_html(schema: Any) -> str:
    """Return the columns of a :class:`fluss_df.Schema`, a row for each."""
    return _columns(schema, None, {})


def descriptor_html(descriptor: Any) -> str:
    """Return a :class:`fluss_df.TableDescriptor`: its columns, keys and properties."""
    about: dict[str, object] = {"buckets": descriptor.bucket_count}
    return _described("Table descriptor", descriptor, about)


def info_html(info: Any) -> str:
    """Return a :class:`fluss_df.TableInfo`: its columns, keys and properties."""
    about: dict[str, object] = {
        "table id": str(info.table_id),
        "schema id": str(info.schema_id),
        "buckets": info.num_buckets,
    }
    return _described(info.table_path, info.descriptor, about)


def _described(caption: object, descriptor: Any, about: dict[str, object]) -> str:
    if descriptor.comment:
        about["comment"] = descriptor.comment
    for kind, properties in (
        ("", descriptor.properties),
        ("custom ", descriptor.custom_properties),
    ):
        for key, value in sorted(properties.items()):
            about[f"{kind}{key}"] = shown_option(key, value)
    roles = {"partition key": descriptor.partition_keys, "bucket key": descriptor.bucket_keys}
    return _columns(descriptor.schema, caption, roles) + pairs(None, about)


def _columns(schema: Any, caption: object, roles: Mapping[str, Sequence[str]]) -> str:
    roles = {"primary key": schema.primary_keys, "auto increment": schema.auto_increment, **roles}

    def rows() -> Iterable[Sequence[object]]:
        for column in schema.columns:
            keys = [role for role, names in roles.items() if column.name in names]
            if column.aggregate is not None:
                keys.append(f"aggregate: {column.aggregate}")
            yield column.name, column.type, ", ".join(keys), column.comment

    count = len(schema.columns)
    headings = ("column", "type", "key", "comment")
    return table(f"{count} columns" if caption is None else caption, headings, rows(), count)
