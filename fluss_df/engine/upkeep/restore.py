"""Backups put back into a folder; an archive of another's making can do nothing else.

An archive is data: its members are the files that an engine has, by name and kind, or it is
refused. Ids in the catalog become names of folders, so the catalog is read before the folder is
one that an engine opens.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tarfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Final, cast

import pyarrow as pa

from fluss_df.engine.access.acl_store import read_acls
from fluss_df.engine.catalog.catalog_files import CATALOG, DATA, CatalogFiles
from fluss_df.engine.catalog.cluster_state import read_state
from fluss_df.engine.catalog.old_formats import convert_old_format
from fluss_df.engine.files.files import (
    CHECKSUMS_SINCE,
    FORMAT,
    damage_in,
    disk_refused,
    file_locks,
    make_folder,
    read_format,
    sync_data,
    sync_folder,
)
from fluss_df.engine.tables.tables import Table, databases_from_json
from fluss_df.engine.upkeep.backup import codec_of
from fluss_df.engine.upkeep.backup_lake import LAKE, MEMBER
from fluss_df.errors import ErrorCode, FlussError

# the names that files of a backup may have
_MEMBER: Final = re.compile(
    r"FORMAT"
    r"|catalog/(databases|cluster|acls|table-\d{1,18})\.json"
    r"|data/\d{1,18}/(table|\d{1,18})/\d{1,9}/"
    r"(log/(synced|\d{20}\.log)|kv/[A-Za-z0-9][A-Za-z0-9._-]{0,80})"
    rf"|{MEMBER}",
    re.ASCII,
)
_MOST_MEMBERS: Final = 10_000_000
# the most bytes of a header's extension, which is read at once
_MOST_EXTENSION_BYTES: Final = 1 << 16
_MOST_CATALOG_BYTES: Final = 256 << 20
_PIECE: Final = 1 << 20
_UNDER_WAY: Final = ".restoring"
# the file that an engine leaves which tried to open the folder while it was locked
_LOCK: Final = "LOCK"
# what headers' extensions have, which says nothing about what is in a file
_UNUSED: Final = {b"mtime", b"atime", b"ctime", b"uid", b"gid", b"uname", b"gname", b"comment"}
_RECORD: Final = re.compile(rb"(\d{1,9}) ([A-Za-z]{1,9})=")
_SIZE: Final = re.compile(rb"\d{1,18}")


class _Member(tarfile.TarInfo):
    """A header of an archive.

    Only regular files, with the extensions of their names and sizes that backups have, are read:
    Python's own reader takes the map of a sparse file before it can be asked whether it is one,
    and a map has no largest size.
    """

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> _Member:
        found = cls._header(archive)
        fields: dict[bytes, bytes] = {}
        if found.type == tarfile.XHDTYPE:
            if found.size > _MOST_EXTENSION_BYTES:
                raise FlussError(f"a header of {found.size:,} bytes is in it")
            fields = _fields(_read(archive, _in_blocks(found.size))[: found.size])
            try:
                found = cls._header(archive)
            except tarfile.TarError as error:
                raise FlussError(f"it is cut off, or damaged: {error}") from error
        if found.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
            raise FlussError(f"there is a {found.name!r} in it that is no file")
        if b"path" in fields:
            found.name = fields[b"path"].decode()
        if b"size" in fields:
            if not _SIZE.fullmatch(fields[b"size"]):
                raise FlussError(f"a header in it says that {found.name!r} has no size")
            found.size = int(fields[b"size"])
        found.offset_data = _stream(archive).tell()
        archive.offset = found.offset_data + _in_blocks(found.size)
        return found

    @classmethod
    def _header(cls, archive: tarfile.TarFile) -> _Member:
        block = _stream(archive).read(tarfile.BLOCKSIZE)
        found = cls.frombuf(block, "utf-8", "surrogateescape")
        found.offset = _stream(archive).tell() - tarfile.BLOCKSIZE
        if found.size < 0:
            raise FlussError(f"a header in it says that {found.name!r} has {found.size:,} bytes")
        return found


def _stream(archive: tarfile.TarFile) -> IO[bytes]:
    return cast(IO[bytes], archive.fileobj)


def _read(archive: tarfile.TarFile, size: int) -> bytes:
    data = _stream(archive).read(size)
    if len(data) < size:
        raise FlussError("it is cut off")
    return data


def _in_blocks(size: int) -> int:
    return -(-size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE


def _fields(data: bytes) -> dict[bytes, bytes]:
    """Return name and size from a header's extension; what no backup has is refused."""
    found = {}
    at = 0
    while at < len(data):
        record = _RECORD.match(data, at)
        if record is None:
            raise FlussError("an extended header in it is damaged")
        end = at + int(record[1])
        if not record.end() < end <= len(data) or data[end - 1 : end] != b"\n":
            raise FlussError("an extended header in it is damaged")
        name = record[2]
        if name in (b"path", b"size"):
            found[name] = data[record.end() : end - 1]
        elif name not in _UNUSED:
            raise FlussError(f"an extended header in it has a {name.decode()!r}")
        at = end
    return found


def restore(
    file: Path,
    folder: Path,
    *,
    max_bytes: int | None = None,
    watch: Callable[[int], object] | None = None,
) -> None:
    """Put a backup into a folder that is empty or not there.

    ``file`` is ``.tar.zst`` or ``.tar.lz4``. Its files may have ``max_bytes`` together; None for
    what is free on the disk. ``watch`` is called with how many bytes of the backup were read so
    far.

    The folder is locked meanwhile, as an engine's is, on file systems that have locks of folders.

    Raises ``STORAGE_EXCEPTION`` where the folder holds something or is in use, or the backup is
    damaged, cut off, too large, or no backup of an engine; the folder is then as it was. Where the
    disk refuses the last step, which names the files that are read and complete, they stay.
    """
    codec = codec_of(file)
    what = f"cannot restore {file}"
    try:
        with ExitStack() as held, ExitStack() as made:
            own = _own(folder, held, made)
            under_way = folder / _UNDER_WAY
            room = shutil.disk_usage(folder).free if max_bytes is None else max_bytes
            with (
                pa.OSFile(str(file), "r") as stream,
                pa.CompressedInputStream(stream, codec) as unpacked,
                tarfile.open(
                    fileobj=cast(IO[bytes], unpacked), mode="r|", tarinfo=_Member
                ) as archive,
            ):
                _unpack(archive, under_way, room, lambda: watch and watch(stream.tell()))
            if not (under_way / "FORMAT").exists():
                raise FlussError("it is cut off")
            _read_catalog(under_way)
            for path in [under_way, *(p for p in under_way.rglob("*") if p.is_dir())]:
                sync_folder(path)
            _require_nothing_but(folder, own)
            _put_in_place(folder, made)
    except OSError as error:
        raise disk_refused(what, folder, error) from error
    # whatever Python's reader of archives, and the catalog's, make of one that is damaged
    except Exception as error:
        text = (
            error.message if isinstance(error, FlussError) else f"{type(error).__name__}: {error}"
        )
        raise FlussError(f"{what}: {text}", ErrorCode.STORAGE_EXCEPTION) from error


def _own(folder: Path, held: ExitStack, made: ExitStack) -> set[str]:
    """Make the folder, lock it as engines do, and make the one in it that files are unpacked to.

    Returns the names that may be in the folder from now on. ``held`` gives the lock up. ``made``
    removes what was made here, and nothing that another process has put there.
    """
    existed = folder.exists()
    if existed:
        _require_nothing_but(folder, set())
    make_folder(folder.absolute())
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    held.callback(os.close, fd)
    locked = _lock(folder, fd)
    _require_nothing_but(folder, set())
    # an engine refuses a folder that holds it
    (folder / _UNDER_WAY).mkdir(mode=0o700)
    if not existed:
        made.callback(_remove_empty, folder)
    made.callback(shutil.rmtree, folder / _UNDER_WAY, ignore_errors=True)
    own = {_UNDER_WAY, _LOCK} if locked else {_UNDER_WAY}
    _require_nothing_but(folder, own)
    return own


def _lock(folder: Path, fd: int) -> bool:
    """Lock a folder; whether its file system has locks of folders.

    Raises FlussError where another has the lock.
    """
    fcntl = file_locks()
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise FlussError(
            f"{folder} is in use by an engine, or another restore: restore to a new folder"
        ) from None
    except OSError:  # what else it has to say is that there are none
        return False
    return True


def _require_nothing_but(folder: Path, names: set[str]) -> None:
    others = sorted(set(os.listdir(folder)) - names)
    if others:
        raise FlussError(f"{folder} is not empty, it holds {others[0]!r}: restore to a new folder")


def _remove_empty(folder: Path) -> None:
    # not empty is what another process has put something into
    with contextlib.suppress(OSError):
        folder.rmdir()


def _put_in_place(folder: Path, made: ExitStack) -> None:
    """Give files that are complete their names; from the first on, nothing is removed any more."""
    under_way = folder / _UNDER_WAY
    moved = False
    try:
        # the catalog makes it a folder that an engine opens
        for name in (DATA, LAKE, CATALOG, "FORMAT"):
            if (under_way / name).exists():
                os.rename(under_way / name, folder / name)
                moved = True
                made.pop_all()
        under_way.rmdir()
        sync_folder(folder)
    except OSError as error:
        if moved:
            text = f"{error.strerror}; {folder} holds a part of it: remove it and restore again"
            raise OSError(error.errno, text) from error
        raise


def _unpack(archive: tarfile.TarFile, folder: Path, room: int, read: Callable[[], object]) -> None:
    """Write the members of an archive, as long as they are files of an engine."""
    for members, member in enumerate(archive, 1):
        # Python keeps every header that it has read
        archive.members.clear()  # type: ignore[attr-defined]
        if not _MEMBER.fullmatch(member.name) or member.issparse() or member.size < 0:
            raise FlussError(f"{member.name!r} is no file of a backup")
        room -= member.size
        read_whole = member.name.startswith(CATALOG)
        too_large = read_whole and member.size > _MOST_CATALOG_BYTES
        if members > _MOST_MEMBERS or room < 0 or too_large:
            raise FlussError(
                f"at {member.name} it is larger than the room for it: {members:,} files, and"
                f" {member.size:,} bytes in this one"
            )
        content = archive.extractfile(member)
        assert content is not None
        path = folder / member.name
        make_folder(path.parent)
        # a name that comes twice is refused
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(fd, "wb") as target:
            shutil.copyfileobj(content, target, _PIECE)
            target.flush()
            sync_data(fd)
            if target.tell() != member.size:
                raise FlussError("it is cut off")
        read()


def _read_catalog(folder: Path) -> None:
    """Read the catalog as an engine does when it opens the folder; remove data of no table.

    Raises FlussError where it would not.
    """
    version, problem = read_format(folder)
    if problem is not None:
        raise FlussError(problem)
    files = CatalogFiles(folder, plain=version < CHECKSUMS_SINCE)
    kept = files.databases()
    with damage_in(kept.first):
        databases_from_json(kept.read()[0]["databases"])
    kept = files.cluster()
    with damage_in(kept.first):
        value = kept.read()[0]
        if value is not None:
            read_state(value)
    kept = files.acls()
    with damage_in(kept.first):
        value = kept.read()[0]
        if value is not None:
            read_acls(value)
    tables = []
    for table_id in files.table_ids():
        kept = files.table(table_id)
        with damage_in(kept.first):
            tables.append(Table.from_json(kept.read()[0]))
    # tables that were dropped while the backup was written; an engine would set their rows aside
    for part in list(files.unknown({table.id for table in tables})):
        if part.is_dir():
            shutil.rmtree(part)
    if version == FORMAT:
        # an archive is whole or refused: the buckets that it has are those that have rows
        convert_old_format(files, tables)
