"""Damaged folders: files changed, lost and exchanged; what a reader sees, and what ``check`` says.

Each trial takes a small folder, damages one thing in it, and looks. Allowed are the rows that were
written, and errors that name what is wrong; errors only where the bytes that are gone are nowhere
else. ``tests.campaigns.embedded_damage`` does it some ten thousand times.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import pickle
import random
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from fluss_df.engine.engine import Engine
from fluss_df.engine.engine_options import EngineOptions
from fluss_df.engine.tables.buckets import java_name
from fluss_df.engine.upkeep.check import check_folder
from fluss_df.errors import FlussError
from fluss_df.metadata import TableBucket, TablePath
from fluss_df.record.kv.kv_batch import KvEncoder
from fluss_df.record.log.log_batch import Compression, encode_log_batch
from fluss_df.schema import Schema, TableDescriptor

SCHEMA: Final = pa.schema([("n", pa.int64()), ("text", pa.string()), ("day", pa.string())])
_OPTIONS: Final = EngineOptions(segment_bytes=2500)
_SECOND_LIMIT: Final = 2.0
# a page of a file, as an operating system loses it
_PAGES: Final = (1, 16, 512, 4096)

Contents = dict[str, tuple[Any, ...] | str]


@dataclass
class Template:
    """A folder that is damaged again and again."""

    folder: Path
    older: Path
    expected: Contents
    # the folders of buckets whose changelogs have lost their beginning
    expired: set[str] = field(default_factory=set)


# ---- what is in a folder


def _text(choose: random.Random) -> str:
    return choose.randbytes(choose.randrange(10, 60)).hex()


class _Filler:
    """Writes to the tables of one engine."""

    def __init__(self, seed: int) -> None:
        self._choose = random.Random(seed)
        self._sequences: dict[TableBucket, int] = {}

    def create(self, engine: Engine, name: str, keys: list[str] | None, parted: bool) -> None:
        properties = {"table.log.arrow.compression.type": self._choose.choice(["NONE", "ZSTD"])}
        descriptor = TableDescriptor(
            Schema(SCHEMA, keys),
            bucket_count=2,
            partition_keys=["day"] if parted else (),
            properties=properties,
        )
        path = TablePath("fluss", name)
        engine.catalog.create_table(path, descriptor.to_json(), False)
        for day in ("a", "b") if parted else ():
            engine.catalog.create_partition(path, {"day": day}, False)

    def write(self, engine: Engine, rounds: int, rows: int) -> None:
        for _ in range(rounds):
            for bucket in all_buckets(engine):
                self._write(engine, bucket, rows)

    def _write(self, engine: Engine, bucket: TableBucket, rows: int) -> None:
        sequence = self._sequences.get(bucket, -1) + 1
        self._sequences[bucket] = sequence
        table = engine.catalog.table_by_id(bucket.table_id)
        assert table is not None
        if not table.has_primary_key:
            texts = [_text(self._choose) for _ in range(3)]
            data = pa.record_batch([range(3), texts, ["a"] * 3], schema=SCHEMA)
            compression = Compression.from_properties(table.descriptor.properties)
            batch = encode_log_batch(data, schema_id=1, compression=compression)
            batch.stamp(7, sequence)
            tablet = engine.bucket(bucket)[1]
            tablet.append(memoryview(batch.to_bytes()), dict.fromkeys(table.schemas))
            tablet.sync()
            return
        keys = self._choose.sample(range(4 * rows), rows)
        changed = pa.table([keys, [_text(self._choose) for _ in keys], ["a"] * rows], schema=SCHEMA)
        columns = table.descriptor.schema.columns
        # columns of partitions are in no key
        put = KvEncoder(1, columns, ["n"]).encode(changed)
        put.stamp(7, sequence)
        kv = engine.kv_bucket(bucket)[1]
        kv.put(memoryview(put.to_bytes()))
        kv.log.sync()
        kv.apply()


def all_buckets(engine: Engine) -> list[TableBucket]:
    """Return the buckets of all tables, but for the last of each, which nobody writes to."""
    found = []
    for table in engine.catalog.all_tables():
        parts = [p.id for p in table.partitions.values()] if table.partitioned else [None]
        found += [TableBucket(table.id, i, part) for part in parts for i in range(table.buckets)]
    return found


_HOW: Final[dict[str, dict[str, Any]]] = {
    "log": {"tables": {"log": None}},
    "killed": {"tables": {"log": None}, "killed": True},
    "rows": {"tables": {"rows": ["n"]}, "rows": 60},
    "rows-killed": {"tables": {"rows": ["n"]}, "rows": 20, "killed": True},
    "expired": {"tables": {"log": None, "rows": ["n"]}, "rows": 10, "expired": True},
    "parted": {"tables": {"parted": None, "keyed": ["n", "day"]}, "parted": True},
    "both": {"tables": {"log": None, "rows": ["n"]}, "rows": 30},
}


def make_templates(root: Path) -> dict[str, Template]:
    """Make the folders."""
    return {
        name: make_filled(root / name, number, **_HOW[name]) for number, name in enumerate(_HOW)
    }


def make_filled(
    root: Path,
    seed: int,
    *,
    tables: dict[str, list[str] | None],
    rows: int = 8,
    killed: bool = False,
    expired: bool = False,
    parted: bool = False,
) -> Template:
    """Make a folder with some tables."""
    filler = _Filler(seed)
    made, older, folder = root / "made", root / "older", root / "d"
    engine = Engine(made, _OPTIONS)
    for name, keys in tables.items():
        filler.create(engine, name, keys, parted)
    filler.write(engine, 3, rows)
    engine.close()
    shutil.copytree(made, older)
    engine = Engine(made, _OPTIONS)
    # small files change, too
    engine.catalog.create_database("more", False, b"")
    filler.write(engine, 8, rows)
    template = Template(folder, older, {})
    if expired:
        for bucket in all_buckets(engine):
            table, tablet = engine.bucket(bucket)
            later = time.time_ns() // 1_000_000 + 10_000
            use = engine.kv_bucket(bucket)[1] if table.has_primary_key else tablet
            assert use.expire(later, 1000)
            template.expired.add(_relative(made, engine.bucket_folder(bucket)))
        filler.write(engine, 3, rows)
    if killed:
        shutil.copytree(made, folder)
        template.expected = read_all(engine)
        engine.close()
    else:
        engine.close()
        engine = Engine(made, _OPTIONS)
        template.expected = read_all(engine)
        engine.close()
        # opened and closed in order, as most folders are
        shutil.copytree(made, folder)
    assert all(isinstance(found, tuple) for found in template.expected.values())
    assert check_folder(folder).sound
    return template


def _relative(root: Path, path: Path) -> str:
    return str(path.relative_to(root))


def read_all(engine: Engine) -> Contents:
    """Return what a reader sees of every bucket: all that is there, or the error."""
    return {
        _relative(engine.folder, engine.bucket_folder(bucket)): _read(engine, bucket)
        for bucket in all_buckets(engine)
    }


def _read(engine: Engine, bucket: TableBucket) -> tuple[Any, ...] | str:
    try:
        return _read_once(engine, bucket)
    except FlussError as error:
        text = error
    if text.is_retriable:
        # as clients do
        try:
            return _read_once(engine, bucket)
        except FlussError as error:
            text = error
    if java_name(bucket) not in text.message and str(engine.folder) not in text.message:
        raise ValueError(f"it does not say where: {text.message}")
    return text.message


def _read_once(engine: Engine, bucket: TableBucket) -> tuple[Any, ...]:
    engine.log_bounds(bucket)
    table, tablet = engine.bucket(bucket)
    pieces, times = [], []
    offset = start = tablet.start_offset
    while offset < tablet.high_watermark:
        piece = tablet.read(offset, 3000, at_least_one=True)
        assert piece is not None
        pieces.append(bytes(piece.data))
        times += piece.headers.timestamp.tolist()
        offset = piece.headers.end_offset or 0
    places = [tablet.offset_for_time(t + d) for t in times[::7] for d in (0, 1)]
    found = start, offset, b"".join(pieces), places
    if not table.has_primary_key:
        return found
    kv = engine.kv_bucket(bucket)[1]
    values, applied = kv.scan()
    listed = list(values)
    rows = kv._codec().decoder().decode_values(listed)
    keys = KvEncoder(1, table.descriptor.schema.columns, ["n"]).keys(rows)
    looked_up = kv.get([keys[i] for i in range(len(listed))] + [b"\xff\xff"])
    if looked_up != [*listed, None]:
        return (*found, applied, listed, "lookups differ from the scan")
    return (*found, applied, sorted(listed))


# ---- damage


@dataclass
class Damage:
    """What was done, and to which buckets' own bytes: only those may be refused."""

    text: str
    lost: set[str] = field(default_factory=set)
    nothing: bool = False


def _bucket_of(path: Path) -> str:
    """Return the folder of the bucket that a path is in: data/<table>/<part>/<bucket>."""
    return "/".join(path.parts[:4])


def _flip(data: bytearray, choose: random.Random) -> None:
    data[choose.randrange(len(data))] ^= 1 << choose.randrange(8)


def _byte(data: bytearray, choose: random.Random) -> None:
    at = choose.randrange(len(data))
    data[at] = (data[at] + choose.randrange(1, 256)) % 256


def _zeros(data: bytearray, choose: random.Random) -> None:
    page = choose.choice(_PAGES)
    at = choose.randrange(len(data)) // page * page
    data[at : at + page] = bytes(len(data[at : at + page]))


def _noise(data: bytearray, choose: random.Random) -> None:
    page = choose.choice(_PAGES)
    at = choose.randrange(len(data)) // page * page
    data[at : at + page] = choose.randbytes(len(data[at : at + page]))


def _cut(data: bytearray, choose: random.Random) -> None:
    del data[choose.choice([0, choose.randrange(len(data)), len(data) - 1]) :]


def _removed(data: bytearray, choose: random.Random) -> None:
    at = choose.randrange(len(data))
    del data[at : at + choose.choice([1, 4, 100])]


def _inserted(data: bytearray, choose: random.Random) -> None:
    at = choose.randrange(len(data))
    data[at:at] = choose.randbytes(choose.choice([1, 4, 100]))


def _moved(data: bytearray, choose: random.Random) -> None:
    """Put a part in the place of another one, as disks do that write to a wrong sector."""
    page = min(choose.choice(_PAGES), len(data))
    to, at = (choose.randrange(len(data) - page + 1) for _ in range(2))
    data[to : to + page] = data[at : at + page]


def _appended(data: bytearray, choose: random.Random) -> None:
    size = choose.randrange(1, 300)
    data += choose.choice([choose.randbytes(size), bytes(size), bytes(data[:size])])


_EDITS: Final = (
    *(_flip, _flip, _byte, _zeros, _noise, _cut, _removed, _inserted, _moved, _appended),
)


def _kind(path: Path) -> str:
    if path.parts[-2:-1] and path.parent.name.startswith("kv"):
        return f"kv/{path.name.split('-')[0].lstrip('0123456789')}"
    return path.suffix if path.suffix and path.suffix != ".json" else path.name.split("-")[0]


def damage(folder: Path, template: Template, choose: random.Random) -> Damage:
    """Damage one thing in a folder."""
    if choose.random() < 0.12:
        return _damage_folder(folder, template, choose)
    kinds: dict[str, list[Path]] = {}
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            kinds.setdefault(_kind(file.relative_to(folder)), []).append(file)
    # each kind as often, logs and rows more so
    kind = choose.choice([*sorted(kinds), *(k for k in (".log", "kv/.sst") if k in kinds)])
    file = choose.choice(kinds[kind])
    name = file.relative_to(folder)
    way = choose.choices(["edit", "delete", "exchange", "overwrite", "older"], [7, 1, 1, 0.5, 1])[0]
    touched = {name}
    before = {name: file.read_bytes()}
    with contextlib.suppress(FileNotFoundError):
        if way == "edit" and before[name]:
            edit = choose.choice(_EDITS)
            data = bytearray(before[name])
            edit(data, choose)
            file.write_bytes(bytes(data))
            way = edit.__name__
        elif way == "delete":
            file.unlink()
        elif way in ("exchange", "overwrite"):
            others = kinds[choose.choice(sorted(kinds))] if choose.random() < 0.3 else kinds[kind]
            other = choose.choice(others)
            data = bytearray(other.read_bytes())
            if way == "exchange":
                touched.add(other.relative_to(folder))
                before[other.relative_to(folder)] = bytes(data)
                other.write_bytes(before[name])
            file.write_bytes(bytes(data))
            way = f"{way} with {other.relative_to(folder)}"
        elif way == "older":
            file.write_bytes((template.older / name).read_bytes())
    made = Damage(f"{way} {name}")
    for each in touched:
        after = (folder / each).read_bytes() if (folder / each).exists() else None
        if after == before[each]:
            continue
        bucket = _bucket_of(each)
        inside = after is not None and after.startswith(before[each])
        if (each.suffix == ".log" and each.parent.name == "log" and not inside) or (
            each.parent.name.startswith("kv") and bucket in template.expired
        ):
            made.lost.add(bucket)
    return made


def _damage_folder(folder: Path, template: Template, choose: random.Random) -> Damage:
    """Delete a folder, or exchange two of a kind."""
    level = choose.choice(["catalog", "*", "*/*", "*/*/*", "*/*/*/log", "*/*/*/kv"])
    base = folder if level == "catalog" else folder / "data"
    found = sorted(path for path in base.glob(level) if path.is_dir())
    if not found:
        return Damage("nothing", nothing=True)
    chosen = [choose.choice(found)]
    if len(found) > 1 and choose.random() < 0.6:
        chosen = choose.sample(found, 2)
    names = [str(path.relative_to(folder)) for path in chosen]
    lost = {
        bucket
        for bucket in template.expected
        for name in names
        if f"{bucket}/".startswith(f"{name}/") or name == f"{bucket}/log"
        if level != "*/*/*/kv" or bucket in template.expired
    }
    lost |= {_bucket_of(Path(name)) for name in names} & (
        template.expired if level == "*/*/*/kv" else set()
    )
    if len(chosen) == 1:
        shutil.rmtree(chosen[0])
        return Damage(f"delete {names[0]}", lost)
    aside = folder / "aside"
    os.rename(chosen[0], aside)
    os.rename(chosen[1], chosen[0])
    os.rename(aside, chosen[1])
    return Damage(f"exchange {' and '.join(names)}", lost)


# ---- trials


@dataclass
class Counts:
    """What became of trials."""

    trials: int = 0
    sound: int = 0
    mended: int = 0
    refused: int = 0
    slowest: float = 0.0
    failures: list[str] = field(default_factory=list)

    def add(self, other: Counts) -> None:
        """Add those of others."""
        self.trials += other.trials
        self.sound += other.sound
        self.mended += other.mended
        self.refused += other.refused
        self.slowest = max(self.slowest, other.slowest)
        self.failures += other.failures


def trial(template: Template, place: Path, seed: int, counts: Counts, tries: int = 3) -> None:
    """Damage a copy of a folder and look at it.

    What takes too long is tried again: other programs may have had the machine.
    """
    choose = random.Random(seed)
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(template.folder, place)
    done = damage(place, template, choose)
    began = time.perf_counter()
    problems: list[str] = []
    try:
        report = check_folder(place)
        sound, notes = report.sound, bool(report.findings)
        said = "; ".join(f"{f.level} {f.where}: {f.message}" for f in report.findings)
    except FlussError as error:
        sound, notes, said = False, True, error.message
    checked = time.perf_counter() - began
    found = _look(place, template)
    took = time.perf_counter() - began - checked
    refused = {bucket for bucket, value in found.items() if isinstance(value, str)}
    for bucket, value in template.expected.items():
        if bucket not in refused and found[bucket] != value:
            problems.append(f"silently wrong: {bucket}: {_difference(value, found[bucket])}")
    problems += [
        f"lost though it could be saved: {bucket}: {found[bucket]}"
        for bucket in sorted(refused - done.lost)
    ]
    if sound != (not refused):
        problems.append(f"check says {'sound' if sound else 'damaged'} ({said}), {refused=}")
    if not refused and not problems and choose.random() < 0.2:
        # what was put right is so for good
        if not check_folder(place).sound:
            problems.append("not sound when it was opened")
        elif _look(place, template) != template.expected:
            problems.append("not the same when it is opened again")
    if max(checked, took) > _SECOND_LIMIT:
        if tries > 1:
            trial(template, place, seed, counts, tries - 1)
            return
        problems.append(f"check took {checked:.1f} s, reading {took:.1f} s")
    counts.trials += 1
    counts.slowest = max(counts.slowest, checked, took)
    if refused:
        counts.refused += 1
    elif notes:
        counts.mended += 1
    else:
        counts.sound += 1
    counts.failures += [
        f"seed {seed}, {place.name.split('.')[0]}: {done.text}: {text}" for text in problems
    ]


def _difference(expected: Any, found: Any) -> str:
    if len(expected) != len(found):
        return f"{found[-1]!r:.200}"
    parts = [i for i, (one, other) in enumerate(zip(expected, found, strict=True)) if one != other]
    return f"parts {parts} differ"


def _look(place: Path, template: Template) -> Contents:
    try:
        engine = Engine(place, _OPTIONS)
    except FlussError as error:
        if str(place) not in error.message:
            raise ValueError(f"it does not say where: {error.message}") from error
        return dict.fromkeys(template.expected, error.message)
    try:
        found = read_all(engine)
        return {bucket: found.get(bucket, ("no such bucket",)) for bucket in template.expected}
    finally:
        engine.close()


def run(templates: dict[str, Template], place: Path, seeds: range) -> Counts:
    """Do trials; each seed is a trial of one folder."""
    counts = Counts()
    names = sorted(templates)
    logging.disable(logging.ERROR)
    for seed in seeds:
        name = names[seed % len(names)]
        try:
            trial(templates[name], place / f"{name}.{os.getpid()}", seed, counts)
        except Exception as error:
            counts.trials += 1
            counts.failures.append(f"seed {seed}, {name}: {type(error).__name__}: {error}")
    logging.disable(logging.NOTSET)
    return counts


def _run_stored(root: str, first: int, count: int) -> Counts:
    return run(_stored(root), Path(root) / "trials", range(first, first + count))


@functools.cache
def _stored(root: str) -> dict[str, Template]:
    templates: dict[str, Template] = pickle.loads((Path(root) / "templates").read_bytes())
    # what is imported when it is first needed does not count
    run(templates, Path(root) / "trials", range(len(templates)))
    return templates


def campaign(
    root: Path, trials: int, seed: int, workers: int, report: Callable[[Counts], None]
) -> Counts:
    """Do many trials in several processes."""
    import concurrent.futures
    import multiprocessing

    templates = make_templates(root)
    (root / "trials").mkdir()
    (root / "templates").write_bytes(pickle.dumps(templates))
    total = Counts()
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(workers, mp_context=context) as pool:
        jobs = [
            pool.submit(_run_stored, str(root), first, min(100, seed + trials - first))
            for first in range(seed, seed + trials, 100)
        ]
        for done in _in_turn(jobs):
            total.add(done.result())
            report(total)
    return total


def _in_turn(jobs: list[Any]) -> Iterator[Any]:
    import concurrent.futures

    yield from concurrent.futures.as_completed(jobs)
