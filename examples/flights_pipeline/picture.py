"""The picture of the pipeline and of its results."""

from __future__ import annotations

from pathlib import Path

import polars as pl

Progress = list[tuple[float, int, int, int, int]]

_BOXES = [
    ("events", 0.02, 0.42),
    ("raw_flights\n(log)", 0.18, 0.42),
    ("Spark:\nclean, enrich", 0.37, 0.42),
    ("clean_flights\n(log, exactly once)", 0.58, 0.68),
    ("quarantine\n(log, exactly once)", 0.58, 0.16),
    ("Spark:\naggregate", 0.79, 0.68),
    ("delays\n(primary key)", 0.93, 0.36),
]
_ARROWS = [(0, 1), (1, 2), (2, 3), (2, 4), (3, 5), (5, 6)]


def draw(path: Path, progress: Progress, delays: pl.DataFrame, quarantine: pl.DataFrame) -> None:
    """Save the picture."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure = plt.figure(figsize=(13, 9), constrained_layout=True)
    grid = figure.add_gridspec(3, 2, height_ratios=[1, 1.4, 1.4])
    way = figure.add_subplot(grid[0, :])
    way.axis("off")
    for first, second in _ARROWS:
        way.annotate(
            "",
            xy=_BOXES[second][1:],
            xytext=_BOXES[first][1:],
            arrowprops={"arrowstyle": "->", "color": "grey", "shrinkA": 42, "shrinkB": 42},
        )
    for text, x, y in _BOXES:
        style = {"boxstyle": "round,pad=0.5", "fc": "#ffe6cc" if "Spark" in text else "#dbe9f6"}
        way.text(x, y, text, ha="center", va="center", fontsize=9, bbox=style)
    way.set_title("Flights through Fluss and Spark")
    rows = figure.add_subplot(grid[1, 0])
    seconds = [entry[0] for entry in progress]
    for index, name in enumerate(("raw", "clean", "quarantine", "counted"), 1):
        rows.plot(seconds, [entry[index] for entry in progress], label=name)
    rows.set(xlabel="seconds", ylabel="rows", title="Rows in the tables, as Polars saw them live")
    rows.legend()
    reasons = quarantine.group_by("reason").len().sort("reason")
    bad = figure.add_subplot(grid[1, 1])
    bad.bar(reasons["reason"].to_list(), reasons["len"].to_list(), color="#c44e52")
    bad.set_title("Rows in quarantine")
    mean = (
        delays.group_by("airline")
        .agg(pl.col("delay_minutes").sum() / (pl.col("flights") - pl.col("cancelled")).sum())
        .sort("delay_minutes")
    )
    bars = figure.add_subplot(grid[2, :])
    bars.barh(mean["airline"].to_list(), mean["delay_minutes"].to_list(), color="#4c72b0")
    bars.set_title("Mean delay on arrival, in minutes")
    figure.savefig(path, dpi=110)
    plt.close(figure)
