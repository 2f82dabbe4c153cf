"""Backups put back into a folder; an archive of another's making can do nothing else.

An archive is data: its members are the files that an engine has, by name and kind, or it is
refused. Ids in the catalog become names of folders, so the catalog is read before the folder is
one that an engine opens.
"""

from __future__ import annotations

import os
import re
import shutil
import tarfile
from pathlib import Path
from typing import IO, Final, cast

import pyarrow as pa

from fluss_df.embedded.backup import codec_of
from fluss_df.embedded.carry_over import carry_over
from fluss_df.embedded.catalog_files import CATALOG, DATA, CatalogFiles
from fluss_df.embedded.cluster_state import read_state
from fluss_df.embedded.files import (
    CHECKSUMS_SINCE,
    FORMAT,
    damage_in,
    disk_refused,
    make_folder,
    read_format,
    sync_folder,
)
from fluss_df.embedded.tables import Table, databases_from_json
from fluss_df.errors import ErrorCode, FlussError

# every file of a backup
_MEMBER: Final = re.compile(
    r"FORMAT"
    r"|catalog/(databases|cluster|table-\d{1,18})\.json"
    r"|data/\d{1,18}/(table|\d{1,18})/\d{1,9}/"
    r"(log/(synced|\d{20}\.log)|kv/[A-Za-z0-9][A-Za-z0-9._-]{0,80})"
)
_MOST_MEMBERS: Final = 10_000_000
# of a header's own extension, which Python reads at once
_MOST_EXTENSION_BYTES: Final = 1 << 16
_MOST_CATALOG_BYTES: Final = 256 << 20
_PIECE: Final = 1 << 20
_UNDER_WAY: Final = ".restoring"


class _Member(tarfile.TarInfo):
    """A header of an archive; kinds that no backup has are refused before they are read."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str | None, errors: str) -> _Member:
        found = super().frombuf(buf, encoding or "utf-8", errors)
        if found.type == tarfile.XHDTYPE:
            if found.size > _MOST_EXTENSION_BYTES:
                raise FlussError(f"a header of {found.size:,} bytes is in it")
        elif not found.isreg():
            raise FlussError(f"there is a {found.name!r} in it that is no file")
        return found


def restore(file: Path, folder: Path, *, max_bytes: int | None = None) -> None:
    """Put a backup into a folder that is empty or not there.

    Parameters
    ----------
    file
        The backup, ``.tar.zst`` or ``.tar.lz4``.
    folder
        Where its files go.
    max_bytes
        The most bytes that they may have; by default what is free on the disk.

    Raises
    ------
    FlussError
        ``STORAGE_EXCEPTION`` where the folder holds something, or the backup is damaged, cut off,
        too large, or no backup of an engine; the folder is then as it was.
    """
    codec = codec_of(file)
    existed = folder.exists()
    if existed and any(folder.iterdir()):
        raise FlussError(
            f"{folder} is not empty: restore to a new folder", ErrorCode.STORAGE_EXCEPTION
        )
    make_folder(folder.absolute())
    under_way = folder / _UNDER_WAY
    try:
        under_way.mkdir(mode=0o700)
        room = shutil.disk_usage(folder).free if max_bytes is None else max_bytes
        with (
            pa.OSFile(str(file), "r") as stream,
            pa.CompressedInputStream(stream, codec) as unpacked,
            tarfile.open(fileobj=cast(IO[bytes], unpacked), mode="r|", tarinfo=_Member) as archive,
        ):
            _unpack(archive, under_way, room)
        if not (under_way / "FORMAT").exists():
            raise FlussError("it is cut off")
        _read_catalog(under_way)
        for path in [under_way, *(p for p in under_way.rglob("*") if p.is_dir())]:
            sync_folder(path)
        # the catalog makes it a folder that an engine opens
        for name in (DATA, CATALOG, "FORMAT"):
            if (under_way / name).exists():
                os.rename(under_way / name, folder / name)
        under_way.rmdir()
        sync_folder(folder)
    except (OSError, tarfile.TarError, FlussError, ValueError) as error:
        for name in (_UNDER_WAY, DATA, CATALOG):
            shutil.rmtree(folder / name, ignore_errors=True)
        (folder / "FORMAT").unlink(missing_ok=True)
        if not existed:
            folder.rmdir()
        what = f"cannot restore {file}"
        if isinstance(error, OSError):
            raise disk_refused(what, folder, error) from error
        raise FlussError(f"{what}: {error}", ErrorCode.STORAGE_EXCEPTION) from error


def _unpack(archive: tarfile.TarFile, folder: Path, room: int) -> None:
    """Write the members of an archive, as long as they are files of an engine."""
    for members, member in enumerate(archive, 1):
        # Python keeps every header that it has read
        archive.members.clear()  # type: ignore[attr-defined]
        if not _MEMBER.fullmatch(member.name) or member.issparse() or member.size < 0:
            raise FlussError(f"{member.name!r} is no file of a backup")
        room -= member.size
        most = _MOST_CATALOG_BYTES if member.name.startswith(CATALOG) else room
        if members > _MOST_MEMBERS or room < 0 or member.size > most:
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
            os.fsync(fd)
            if target.tell() != member.size:
                raise FlussError("it is cut off")


def _read_catalog(folder: Path) -> None:
    """Read the catalog as an engine does when it opens the folder.

    Raises
    ------
    FlussError
        Where it would not.
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
    tables = []
    for table_id in files.table_ids():
        kept = files.table(table_id)
        with damage_in(kept.first):
            tables.append(Table.from_json(kept.read()[0]))
    if version == FORMAT:
        # an archive is whole or refused: the buckets that it has are those that have rows
        carry_over(files, tables)
