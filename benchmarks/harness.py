"""Runs contenders in turn, round after round, and prints medians and ratios.

Their order is another in every round. What a contender takes depends on the one before it:
allocators give memory back to the system some time after it was freed, so that who comes soon after
one that uses the same allocator is spared its page faults.
"""

from __future__ import annotations

import gc
import json
import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

# A server compiles what it does often while it runs: the first scans of a new one take half as long
# again as later ones.
WARM_UP_S = 4.0

RESULTS = Path(__file__).parent / "results"


@dataclass
class Case:
    """One thing to do, done by several contenders.

    ``contenders`` maps a name to a function that does it once; it returns the seconds that count,
    or None for all of its own time. ``ours`` names the one that the others are compared with, and
    ``aims`` the least ratio (theirs / ours) for each other contender that has one.
    """

    name: str
    contenders: Mapping[str, Callable[[], float | None]]
    rows: int
    ours: str = "fluss_df"
    aims: Mapping[str, float] = field(default_factory=dict)


@dataclass
class Result:
    """The seconds of one contender in one case."""

    case: str
    contender: str
    rows: int
    seconds: list[float]
    aim: float | None = None
    ratio: float | None = None

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def run(cases: list[Case], rounds: int, console: Console) -> list[Result]:
    """Run every case: rounds to warm up, then ``rounds`` rounds of all contenders in turn."""
    rng = random.Random(0)
    # the collections below would look at all rows and modules, and leave cold caches
    gc.freeze()
    results: list[Result] = []
    for case in cases:
        console.print(f"[dim]{case.name} ...[/dim]")
        seconds: dict[str, list[float]] = {name: [] for name in case.contenders}
        warm = time.monotonic() + WARM_UP_S
        while len(seconds[case.ours]) < rounds:
            # read before the round, for all of its contenders
            counts = time.monotonic() >= warm
            for name in rng.sample(list(case.contenders), len(case.contenders)):
                contender = case.contenders[name]
                gc.collect()
                began = time.perf_counter()
                counted = contender()
                elapsed = time.perf_counter() - began if counted is None else counted
                if counts:
                    seconds[name].append(elapsed)
        ours = statistics.median(seconds[case.ours])
        for name, values in seconds.items():
            ratio = None if name == case.ours else statistics.median(values) / ours
            results.append(Result(case.name, name, case.rows, values, case.aims.get(name), ratio))
    return results


def report(results: list[Result], console: Console, about: Mapping[str, object]) -> bool:
    """Print the results, save them as JSON, and return whether every aim was met."""
    table = Table(title="times: median (least to most); ratio: time / time of fluss_df")
    for heading in ("case", "contender", "time", "rows/s", "ratio", "aim"):
        table.add_column(heading, justify="left" if heading in ("case", "contender") else "right")
    met = True
    last = ""
    for result in results:
        low, high = min(result.seconds), max(result.seconds)
        unit, scale = ("ms", 1e3) if result.median < 1 else ("s", 1.0)
        aim = ""
        if result.aim is not None and result.ratio is not None:
            good = result.ratio >= result.aim
            met &= good
            aim = f"{result.aim:g} {'[green]met' if good else '[red]missed'}"
        table.add_row(
            "" if result.case == last else result.case,
            result.contender,
            f"{result.median * scale:.1f} ({low * scale:.1f} to {high * scale:.1f}) {unit}",
            f"{result.rows / result.median:,.0f}",
            "" if result.ratio is None else f"{result.ratio:.2f}",
            aim,
            end_section=False,
        )
        last = result.case
    console.print(table)
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{time.strftime('%Y%m%d-%H%M%S')}.json"
    path.write_text(
        json.dumps({"about": dict(about), "results": [asdict(r) for r in results]}, indent=1)
    )
    console.print(
        f"saved to {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}"
    )
    return met
