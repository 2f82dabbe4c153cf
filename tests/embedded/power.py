"""Loss of power: what an engine did to its files is recorded, and disks made that lost some of it.

The disk may fail as well, at random calls, while the engine is used.

The model of a disk: what was written to a file since its last sync may be there wholly, in part or
not at all, in any order; so may names that were made, replaced or removed since the last sync of
their folder. RocksDB writes its files by itself and is not recorded: it is lost, always.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from fluss_df.engine.engine import Engine
from fluss_df.engine.engine_options import EngineOptions
from fluss_df.engine.files.files import DamagedError
from fluss_df.engine.tables.tables import now_ms
from fluss_df.errors import FlussError
from fluss_df.metadata import TableBucket, TablePath
from fluss_df.record.kv.kv_batch import KvEncoder
from fluss_df.record.log.log_batch import Compression, encode_log_batch
from fluss_df.schema import Schema, TableDescriptor

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])
LOG = TablePath("fluss", "log")
ROWS = TablePath("fluss", "rows")
Op = tuple[Any, ...]
_SECTOR = 512
_RECORDED = (
    *("open", "dup", "close", "pwrite", "pwritev", "ftruncate"),
    *("fsync", "fdatasync", "replace", "unlink", "mkdir"),
)


class Recorder:
    """Notes what is done to files under a folder, while it is installed.

    Parameters
    ----------
    root
        The folder.
    fails
        Of a call's name, the number of the error that it ends with; None for none.
    """

    def __init__(self, root: Path, fails: Callable[[str], int | None] = lambda _name: None) -> None:
        self.root = str(root)
        self.ops: list[Op] = []
        self._fails = fails
        self._pwrite_all = os.pwrite
        self._files: dict[int, int] = {}
        self._inodes: dict[str, int] = {}
        self._next = 0

    def note(self, *op: Any) -> None:
        self.ops.append(op)

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        old = {name: getattr(os, name) for name in (*_RECORDED, "pread")}
        self._pwrite_all, plain_open = os.pwrite, io.open
        try:
            for name in _RECORDED:
                setattr(os, name, self._wrapped(name, old[name]))
            os.pread = self._failing("pread", os.pread)
            io.open = self._failing("open", io.open)
            yield
        finally:
            for name, function in old.items():
                setattr(os, name, function)
            io.open = plain_open

    def _failing(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self._fail(name, args)
            return real(*args, **kwargs)

        return call

    def _fail(self, name: str, args: tuple[Any, ...]) -> None:
        """Raise the error that a call is to end with, where it is about a file of the engine."""
        target = args[0]
        if isinstance(target, int):
            concerned = target in self._files
        else:
            inside = self._inside(target)
            concerned = inside is not None and "/kv" not in inside
        number = self._fails(name) if concerned else None
        if number is not None:
            if name == "pwritev":
                # as a disk does that fills up meanwhile
                part = b"".join(args[1])[:100]
                self._pwrite(self._pwrite_all(target, part, args[2]), None, target, part, args[2])
            raise OSError(number, os.strerror(number))

    def _wrapped(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        noted = getattr(self, f"_{name}")

        def call(*args: Any, **kwargs: Any) -> Any:
            before = None
            if name != "close":
                self._fail(name, args)
            if name == "open":
                before = os.path.exists(args[0])
            result = real(*args, **kwargs)
            noted(result, before, *args)
            return result

        return call

    def _inside(self, path: Any) -> str | None:
        text = os.fspath(path)
        return text if isinstance(text, str) and text.startswith(self.root) else None

    def _open(self, fd: int, existed: bool, path: Any, flags: int, *_: Any) -> None:
        inside = self._inside(path)
        if inside is None or "/kv/" in inside:
            return
        if flags & os.O_DIRECTORY:
            self._files[fd] = -1
            self.note("folder", fd, inside)
            return
        if not existed:
            self._next += 1
            self._inodes[inside] = self._next
            self.note("create", inside, self._next)
        self._files[fd] = self._inodes[inside]
        if flags & os.O_TRUNC and existed:
            self.note("cut", self._files[fd], 0)

    def _dup(self, fd: int, _: Any, old: int) -> None:
        if old in self._files:
            self._files[fd] = self._files[old]

    def _close(self, _r: Any, _b: Any, fd: int) -> None:
        self._files.pop(fd, None)

    def _pwrite(self, count: int, _: Any, fd: int, data: Any, offset: int) -> None:
        if fd in self._files:
            self.note("write", self._files[fd], offset, bytes(data)[:count])

    def _pwritev(self, count: int, _: Any, fd: int, parts: Any, offset: int) -> None:
        if fd in self._files:
            self.note("write", self._files[fd], offset, b"".join(parts)[:count])

    def _ftruncate(self, _r: Any, _b: Any, fd: int, size: int) -> None:
        if fd in self._files:
            self.note("cut", self._files[fd], size)

    def _fsync(self, _r: Any, _b: Any, fd: int) -> None:
        if self._files.get(fd, 0) > 0:
            self.note("sync", self._files[fd])
        elif fd in self._files:
            opened = next(op for op in reversed(self.ops) if op[:2] == ("folder", fd))
            self.note("sync folder", opened[2])

    _fdatasync = _fsync

    def _replace(self, _r: Any, _b: Any, old: Any, new: Any) -> None:
        if self._inside(old):
            self._inodes[str(new)] = self._inodes.pop(str(old))
            self.note("rename", str(old), str(new))

    def _unlink(self, _r: Any, _b: Any, path: Any, **_: Any) -> None:
        inside = self._inside(path)
        if inside and "/kv/" not in inside:
            self._inodes.pop(inside, None)
            self.note("remove", inside)

    def _mkdir(self, _r: Any, _b: Any, path: Any, *_: Any) -> None:
        if self._inside(path):
            self.note("mkdir", str(path))


@dataclass
class _File:
    synced: bytes = b""
    pending: list[Op] = field(default_factory=list)


def _apply(data: bytearray, op: Op) -> None:
    if op[0] == "cut":
        del data[op[1] :]
        data.extend(bytes(max(0, op[1] - len(data))))
    else:
        _, offset, written = op
        data.extend(bytes(max(0, offset + len(written) - len(data))))
        data[offset : offset + len(written)] = written


class Disk:
    """A disk after some operations, from which a loss of power makes another."""

    def __init__(self) -> None:
        self.files: dict[int, _File] = {}
        # path -> number of the file, 0 for a folder: on the disk, and as programs see it
        self.names: dict[str, int] = {}
        self._seen: dict[str, int] = {}
        # what is pending in each folder
        self.pending: dict[str, list[Op]] = {}

    def do(self, op: Op) -> None:
        kind = op[0]
        if kind == "create":
            self.files[op[2]] = _File()
            self._seen[op[1]] = op[2]
            self._entry(op[1], ("add", op[1], op[2]))
        elif kind == "mkdir":
            self._seen[op[1]] = 0
            self._entry(op[1], ("add", op[1], 0))
        elif kind == "remove":
            self._seen.pop(op[1], None)
            self._entry(op[1], ("del", op[1]))
        elif kind == "rename":
            # of the file that has the name now, whatever came of earlier ones of that name
            self._seen[op[2]] = number = self._seen.pop(op[1])
            self._entry(op[1], ("rename", op[1], op[2], number))
        elif kind == "sync folder":
            for entry in self.pending.pop(op[1], []):
                self._settle(entry)
        elif kind == "write":
            self.files[op[1]].pending.append(("write", op[2], op[3]))
        elif kind == "cut":
            self.files[op[1]].pending.append(("cut", op[2]))
        elif kind == "sync":
            file = self.files[op[1]]
            data = bytearray(file.synced)
            for entry in file.pending:
                _apply(data, entry)
            file.synced, file.pending = bytes(data), []

    def _entry(self, path: str, entry: Op) -> None:
        self.pending.setdefault(os.path.dirname(path), []).append(entry)

    def _settle(self, entry: Op) -> None:
        kind, path = entry[0], entry[1]
        if kind == "add":
            self.names[path] = entry[2]
        elif kind == "del":
            self.names.pop(path, None)
        else:
            # also where the old name never came to the disk
            self.names[entry[2]] = entry[3]
            if self.names.get(path) == entry[3]:
                del self.names[path]

    def lose_power(self, choose: random.Random, folder: Path, root: str) -> None:
        """Write what is left to a folder."""
        likely = choose.choice([0.0, 0.3, 0.7, 1.0])
        names = dict(self.names)
        for entries in self.pending.values():
            for entry in entries:
                if choose.random() < likely:
                    self._settle(entry)
        for path, number in sorted(self.names.items()):
            # a file is not there without its folder
            parent = os.path.dirname(path)
            if parent != root and parent not in self.names:
                continue
            target = folder / os.path.relpath(path, root)
            if not target.parent.exists():
                continue
            if number == 0:
                target.mkdir(exist_ok=True)
            else:
                target.write_bytes(self._left(self.files[number], choose))
        self.names = names

    @staticmethod
    def _left(file: _File, choose: random.Random) -> bytes:
        data = bytearray(file.synced)
        way = choose.choice(["none", "all", "prefix", "some", "torn"])
        if way == "none":
            return bytes(data)
        pending = list(file.pending)
        if way == "prefix":
            pending = pending[: choose.randrange(len(pending) + 1)]
        for entry in pending:
            if way == "some" and choose.random() < 0.5:
                continue
            if way == "torn" and entry[0] == "write":
                _, offset, written = entry
                for at in range(0, len(written), _SECTOR):
                    if choose.random() < 0.6:
                        _apply(data, ("write", offset + at, written[at : at + _SECTOR]))
                continue
            _apply(data, entry)
        return bytes(data)


def _descriptor(keys: list[str] | None) -> bytes:
    properties = {"table.log.arrow.compression.type": "NONE"}
    return TableDescriptor(Schema(SCHEMA, keys), bucket_count=1, properties=properties).to_json()


def _failing(choose: random.Random, rate: float) -> Callable[[str], int | None]:
    """Have a part of the calls fail."""

    def fails(name: str) -> int | None:
        if choose.random() >= rate:
            return None
        if name in ("open", "dup"):
            return errno.EMFILE
        return errno.EIO if name == "pread" else choose.choice((errno.EIO, errno.ENOSPC))

    return fails


def record(root: Path, seed: int, steps: int = 40, failing: float = 0.0) -> list[Op]:
    """Use an engine, and return what it did to its files; acknowledgements stand among it.

    ``failing`` is the part of calls to the operating system that fail.
    """
    choose = random.Random(seed)
    recorder = Recorder(root, _failing(random.Random(seed + 1), failing))
    use = _Use(root / "d", recorder, choose)
    with recorder.installed():
        for path, keys in ((LOG, None), (ROWS, ["n"])):
            while not use.done(use.create, path, keys):
                pass
        for _ in range(steps):
            way = choose.random()
            if way < 0.4:
                use.done(use.append)
            elif way < 0.8:
                use.done(use.change)
            elif way < 0.9:
                use.done(use.expire)
            else:
                use.done(use.close)
        while not use.done(use.close):
            pass
    acknowledged = {kind: value for _, kind, value in [op for op in recorder.ops if op[0] == "ack"]}
    check(root / "d", {"start": 0} | acknowledged, {LOG, ROWS})
    return recorder.ops


class _Use:
    """Uses an engine; what an error ended is done once more by who calls."""

    def __init__(self, folder: Path, recorder: Recorder, choose: random.Random) -> None:
        self._folder = folder
        self._recorder = recorder
        self._choose = choose
        # with few files, each bucket rests while the other is used
        files = choose.choice((None, 1))
        self._options = EngineOptions(segment_bytes=1500, open_files=files)
        self._opened: Engine | None = None
        self._appended = self._changed = 0

    @property
    def _engine(self) -> Engine:
        if self._opened is None:
            self._opened = Engine(self._folder, self._options)
        return self._opened

    def done(self, step: Callable[..., None], *arguments: object) -> bool:
        """Do a step; whether it was done. What is tried again comes from the same writer."""
        try:
            step(*arguments)
        except FlussError as error:
            if isinstance(error, DamagedError):
                raise AssertionError("nothing is damaged") from error
            engine = self._opened
            if engine is not None and (engine.refusing_writes() or self._choose.random() < 0.2):
                self._opened = None
                with contextlib.suppress(FlussError):
                    engine.close()
            return False
        return True

    def create(self, path: TablePath, keys: list[str] | None) -> None:
        self._engine.catalog.create_table(path, _descriptor(keys), True)
        self._recorder.note("ack", "table", path)

    def append(self) -> None:
        _append(self._engine, self._appended + 1)
        tablet = self._engine.bucket(_bucket(self._engine, LOG))[1]
        if self._choose.random() < 0.7:
            tablet.sync()
            self._recorder.note("ack", "log", self._appended + 1)
        self._appended += 1

    def change(self) -> None:
        _change(self._engine, self._changed + 1)
        kv = self._engine.kv_bucket(_bucket(self._engine, ROWS))[1]
        if self._choose.random() < 0.7:
            kv.log.sync()
            kv.apply()
            self._recorder.note("ack", "rows", self._changed + 1)
        self._changed += 1

    def expire(self) -> None:
        tablet = self._engine.bucket(_bucket(self._engine, LOG))[1]
        self._recorder.note("ack", "start", tablet._active.base_offset)
        # of the log alone: a changelog expires for what RocksDB has, which is lost here
        tablet.expire(now_ms() + 1000, 1)

    def close(self) -> None:
        engine, self._opened = self._engine, None
        engine.close()
        self._recorder.note("ack", "log", self._appended)
        self._recorder.note("ack", "rows", self._changed)


def _bucket(engine: Engine, path: TablePath) -> TableBucket:
    return TableBucket(engine.catalog.table(path).id, 0)


def _append(engine: Engine, number: int) -> None:
    rows = pa.record_batch([[number] * 3, ["x" * 40, "y", "z"]], schema=SCHEMA)
    batch = encode_log_batch(rows, schema_id=1, compression=Compression("none"))
    batch.stamp(5, number - 1)
    engine.bucket(_bucket(engine, LOG))[1].append(memoryview(batch.to_bytes()), {1: None})


def _rows(number: int) -> list[int]:
    return random.Random(number).sample(range(12), 5)


def _change(engine: Engine, number: int) -> None:
    table, kv = engine.kv_bucket(_bucket(engine, ROWS))
    columns = table.descriptor.schema.columns
    keys = _rows(number)
    rows = pa.table([keys, [f"{number}"] * len(keys)], schema=SCHEMA)
    batch = KvEncoder(1, columns, ["n"]).encode(rows)
    batch.stamp(6, number - 1)
    kv.put(memoryview(batch.to_bytes()))


def check(folder: Path, acknowledged: dict[str, int], tables: set[TablePath]) -> None:
    """Open what a loss of power left, and look for what was acknowledged."""
    engine = Engine(folder, EngineOptions(segment_bytes=1500))
    try:
        for path in tables:
            engine.catalog.table(path)
        if LOG in tables:
            tablet = engine.bucket(_bucket(engine, LOG))[1]
            assert tablet.end_offset % 3 == 0, "part of a batch"
            assert tablet.end_offset >= 3 * acknowledged["log"], "acknowledged rows are lost"
            offset = tablet.start_offset
            assert offset <= acknowledged["start"], "what did not expire is lost"
            first, sequences = offset // 3, []
            while offset < tablet.high_watermark:
                piece = tablet.read(offset, 1 << 20, at_least_one=True)
                assert piece is not None
                sequences += piece.headers.sequence.tolist()
                offset = piece.headers.end_offset or 0
            assert sequences == list(range(first, first + len(sequences))), (
                "batches lost, doubled or moved"
            )
        if ROWS in tables:
            kv = engine.kv_bucket(_bucket(engine, ROWS))[1]
            values = kv._codec().decoder().decode_values(list(kv.scan()[0])).to_pylist()
            found = {row["n"]: int(row["text"]) for row in values}
            newest = max(found.values(), default=0)
            assert newest >= acknowledged["rows"], "acknowledged changes are lost"
            expected: dict[int, int] = {}
            for number in range(1, newest + 1):
                expected.update(dict.fromkeys(_rows(number), number))
            assert found == expected, "not the rows after whole batches"
    finally:
        engine.close()


def campaign(folder: Path, cuts: int, seed: int, failing: float = 0.0) -> int:
    """Lose power at random moments; return how many there were."""
    choose = random.Random(seed)
    done = 0
    while done < cuts:
        root = folder / "recorded"
        root.mkdir(parents=True)
        recorded_seed = choose.randrange(2**32)
        try:
            ops = record(root, recorded_seed, failing=failing)
        except Exception as error:
            raise AssertionError(f"recording {recorded_seed}: {error!r}") from error
        shutil.rmtree(root)
        for _ in range(min(10 if failing else 100, cuts - done)):
            cut, cut_seed = choose.randrange(len(ops) + 1), choose.randrange(2**32)
            try:
                lose_power_once(folder / "left", str(root), ops, cut, cut_seed)
            except (AssertionError, FlussError) as error:
                raise AssertionError(
                    f"recording {recorded_seed}, cut {cut} of {len(ops)}, seed {cut_seed}: {error}"
                ) from error
            done += 1
    return done


def lose_power_once(folder: Path, root: str, ops: list[Op], cut: int, seed: int) -> None:
    """Make the disk that is left after a loss of power behind some operations, and check it."""
    disk = Disk()
    acknowledged = {"log": 0, "rows": 0, "start": 0}
    tables: set[TablePath] = set()
    for op in ops[:cut]:
        if op[0] != "ack":
            disk.do(op)
        elif op[1] == "table":
            tables.add(op[2])
        else:
            acknowledged[op[1]] = op[2]
    folder.mkdir()
    try:
        disk.lose_power(random.Random(seed), folder, root)
        check(folder / "d", acknowledged, tables)
    finally:
        shutil.rmtree(folder)
