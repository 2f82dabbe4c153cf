"""Plots as SVG: lines, points and bars over numbers, moments and names.

They stand in the page itself, so that the page's colours are theirs, and need no script. All texts
are escaped; there are no more points than pixels.
"""

from __future__ import annotations

import datetime as dt
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from fluss_df.ui.shown.texts import count, visible

WIDTH: Final = 720
HEIGHT: Final = 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 74, 14, 16, 34
_MOST_POINTS: Final = 600
_MOST_BARS: Final = 40
_DAY_S: Final = 86_400
_LONGEST_NAME: Final = 14

_UNITS: Final = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a plot: its name with a unit, and a value for each place of the axis.

    The value is NaN where there is none.
    """

    name: str
    values: Numbers


def lines(
    at: Numbers, drawn: Sequence[Line], title: str, *, moments: bool = False, points: bool = False
) -> Markup:
    """Return a plot of values over numbers, or over moments in seconds since 1970.

    Parameters
    ----------
    at
        The places on the horizontal axis.
    drawn
        Up to six lines.
    title
        What screen readers read out.
    moments
        Whether the places are moments.
    points
        Whether points are drawn rather than lines between them.
    """
    good = np.isfinite(at)
    shown = [line for line in drawn if np.isfinite(line.values[good]).any()]
    if not shown:
        return Markup('<p class="empty">There is nothing to draw yet.</p>')
    low, high = _range(np.concatenate([line.values[good] for line in shown]), zero=not points)
    first, last = float(at[good].min()), float(at[good].max())
    if first == last:
        # at least 1, and 5 % of large numbers, to which adding 1 may change nothing
        around = max(abs(first) * 0.05, 1.0)
        first, last = first - around, last + around
    parts = [_vertical(low, high), _horizontal(first, last, moments)]
    for index, line in enumerate(shown[:6]):
        keep = good & np.isfinite(line.values)
        x = _LEFT + (at[keep] - first) / (last - first) * (WIDTH - _LEFT - _RIGHT)
        y = _height(line.values[keep], low, high)
        if points:
            parts.append(_points(x, y, index))
        else:
            order = np.argsort(x, kind="stable")
            parts.append(_line(*_thinned(x[order], y[order]), index))
    return _framed(parts, title, [line.name for line in shown[:6]])


def bars(names: Sequence[str], drawn: Line, title: str) -> Markup:
    """Return a plot of values by name: the first ones, where there are many, which it says."""
    values = drawn.values[:_MOST_BARS]
    if not np.isfinite(values).any():
        return Markup('<p class="empty">There is nothing to draw yet.</p>')
    # bars are compared by their lengths, so they begin at 0
    low, high = _range(np.append(values, 0.0), zero=True)
    step = (WIDTH - _LEFT - _RIGHT) / len(values)
    base = float(_height(np.array([0.0]), low, high)[0])
    parts = [_vertical(low, high)]
    every = max(1, math.ceil(len(values) / 8))
    for index, (name, value) in enumerate(zip(names, values, strict=False)):
        left = _LEFT + index * step
        text = visible(str(name))
        if np.isfinite(value):
            top = float(_height(np.array([value]), low, high)[0])
            parts.append(
                Markup(
                    '<rect class="bar" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}">'
                    "<title>{}: {}</title></rect>"
                ).format(
                    left + step * 0.1, min(top, base), step * 0.8, max(abs(base - top), 0.5),
                    text[:100], count(float(value)),
                )
            )  # fmt: skip
        if index % every == 0:
            short = text if len(text) <= _LONGEST_NAME else text[: _LONGEST_NAME - 1] + "…"
            parts.append(_label(left + step / 2, HEIGHT - 14, short, "middle"))
    if len(drawn.values) == len(values):
        return _framed(parts, title, [drawn.name])
    told = f"the first {len(values)} of {len(drawn.values):,}"
    note = Markup('<p class="note">{} rows are drawn.</p>').format(told.capitalize())
    return _framed(parts, f"{title}: {told}", [drawn.name]) + note


def _framed(parts: Sequence[Markup], title: str, names: Sequence[str]) -> Markup:
    made = [
        Markup(
            '<svg xmlns="http://www.w3.org/2000/svg" class="plot" viewBox="0 0 {} {}" role="img"'
            ' aria-label="{}">'
        ).format(WIDTH, HEIGHT, title),
        *parts,
    ]
    for index, name in enumerate(names):
        at = _LEFT + 8 + index * 160
        made.append(
            Markup('<rect class="key c{}" x="{}" y="2" width="10" height="10"/>').format(index, at)
        )
        made.append(_label(at + 15, 11, visible(name)[:24], "start"))
    return Markup("").join([*made, Markup("</svg>")])


def _vertical(low: float, high: float) -> Markup:
    made = []
    ticks = _ticks(low, high, 5)
    for value, text in zip(ticks, labels(ticks), strict=True):
        y = float(_height(np.array([value]), low, high)[0])
        made.append(
            Markup('<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>').format(
                _LEFT, WIDTH - _RIGHT, y, y
            )
        )
        made.append(_label(_LEFT - 6, y + 4, text, "end"))
    return Markup("").join(made)


def _horizontal(first: float, last: float, moments: bool) -> Markup:
    wanted = 5 if last - first < _DAY_S else 4
    ticks = np.linspace(first, last, wanted).tolist() if moments else _ticks(first, last, 6)
    shown = [_time(value, last - first) for value in ticks] if moments else labels(ticks)
    made = []
    for value, text in zip(ticks, shown, strict=True):
        x = _LEFT + (value - first) / (last - first) * (WIDTH - _LEFT - _RIGHT)
        # a label at the end must stay within the plot
        anchor = "end" if x > WIDTH - 50 else "middle"
        made.append(_label(min(x, WIDTH - 4), HEIGHT - 14, text, anchor))
    return Markup("").join(made)


def _label(x: float, y: float, text: str, anchor: str) -> Markup:
    return Markup('<text x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>').format(
        x, y, anchor, text
    )


def _line(x: Numbers, y: Numbers, index: int) -> Markup:
    path = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x.tolist(), y.tolist(), strict=True))
    if len(x) == 1:
        return _points(x, y, index)
    return Markup('<polyline class="line c{}" points="{}"/>').format(index, path)


def _points(x: Numbers, y: Numbers, index: int) -> Markup:
    step = max(1, math.ceil(len(x) / _MOST_POINTS))
    return Markup("").join(
        Markup('<circle class="point c{}" cx="{:.1f}" cy="{:.1f}" r="2.5"/>').format(index, a, b)
        for a, b in zip(x[::step].tolist(), y[::step].tolist(), strict=True)
    )


def _thinned(x: Numbers, y: Numbers) -> tuple[Numbers, Numbers]:
    """Return the highest and the lowest value of each pixel or two."""
    if len(x) <= _MOST_POINTS:
        return x, y
    edges = np.linspace(0, len(x), _MOST_POINTS // 2 + 1).astype(np.int64)
    keep = []
    for start, stop in itertools.pairwise(edges.tolist()):
        part = y[start:stop]
        keep += sorted({start + int(part.argmin()), start + int(part.argmax())})
    index = np.array(keep)
    return x[index], y[index]


def _height(values: Numbers, low: float, high: float) -> Numbers:
    found: Numbers = HEIGHT - _BOTTOM - (values - low) / (high - low) * (HEIGHT - _TOP - _BOTTOM)
    return found


def _range(values: Numbers, *, zero: bool) -> tuple[float, float]:
    found = values[np.isfinite(values)]
    low, high = float(found.min()), float(found.max())
    # the axis begins at 0 only where that is near, so that the growth of large values can be seen
    if zero and low > 0 and low < high * 0.7:
        low = 0.0
    if zero and high < 0:
        high = 0.0
    if low == high:
        around = max(abs(low) * 0.05, 1.0)
        low, high = (low - around, high + around) if low else (0.0, 1.0)
    room = (high - low) * 0.05
    return (low if zero and low == 0 else low - room), high + room


def _ticks(low: float, high: float, wanted: int) -> list[float]:
    """Return round numbers between two."""
    span = (high - low) / wanted
    if not math.isfinite(span) or span <= 0:
        return [low]
    power = 10.0 ** math.floor(math.log10(span))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= span)
    found: list[float] = []
    value = math.ceil(low / step) * step
    while value <= high and len(found) < 20:
        found.append(value)
        if value + step == value:
            break
        value += step
    return found


def labels(ticks: Sequence[float]) -> list[str]:
    """Return numbers for an axis, as ``12.5k``: no longer than it takes to tell them apart."""
    largest = max(map(abs, ticks), default=0.0)
    if largest >= 1e16 or 0 < largest < 1e-3:
        return [f"{value:.2e}" for value in ticks]
    unit, name = next(((limit, name) for limit, name in _UNITS if largest >= limit * 10), (1.0, ""))
    found: list[str] = []
    for digits in range(7):
        found = [f"{value / unit:,.{digits}f}" for value in ticks]
        told = all(
            abs(float(text.replace(",", "")) * unit - value) <= largest * 1e-9
            for text, value in zip(found, ticks, strict=True)
        )
        if told or len(max(found, key=len)) > 7:
            break
    if len(set(found)) < len(found):
        # a small range far from 0 needs all digits
        found, name = [f"{value:,.10g}" for value in ticks], ""
    return [text + name for text in found]


def _time(seconds: float, span: float) -> str:
    try:
        found = dt.datetime.fromtimestamp(seconds, dt.UTC)
    except (ValueError, OverflowError, OSError):
        return f"{seconds:.4g}"
    if span < _DAY_S:
        return found.strftime("%H:%M:%S")
    return found.strftime("%m-%d %H:%M" if span < 10 * _DAY_S else "%Y-%m-%d")
