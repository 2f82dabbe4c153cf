"""``fluss-df check``, ``backup`` and ``restore``: folders of the embedded engine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from fluss_df.cli.base.console import EXIT_ERROR, err, errors_as_messages, out
from fluss_df.cli.base.progress import bytes_in, progress
from fluss_df.errors import FlussError

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="A folder of an embedded Fluss.")]
Archive = Annotated[Path, typer.Argument(metavar="FILE", help="A .tar.zst or .tar.lz4 file.")]


def check(folder: Folder) -> None:
    """Verify every byte of a folder that is not in use, and say what was found."""
    from fluss_df.engine.upkeep.check import check_folder

    with errors_as_messages():
        place = folder.expanduser()
        total = bytes_in(place, ".log") + bytes_in(place / "lake" / "warehouse")
        with progress("checking", total=total, unit="bytes") as seen:
            done = 0

            def watch(more: int) -> None:
                nonlocal done
                done += more
                seen(done, None)

            report = check_folder(place, watch)
    out.print(
        f"{report.tables} tables, {report.buckets} buckets, {report.segments} segments:"
        f" {report.records:,} records in {report.log_bytes:,} bytes of logs,"
        f" {report.rows:,} rows of primary-key tables"
        + (
            f", {report.lake_files:,} files of the lake in {report.lake_bytes:,} bytes"
            if report.lake_files
            else ""
        )
    )
    for finding in report.findings:
        console, colour = (err, "bold red") if finding.level == "damage" else (out, "yellow")
        where, message = escape(str(finding.where)), escape(finding.message)
        console.print(f"[{colour}]{finding.level}:[/] {where}: {message}")
    if not report.sound:
        raise typer.Exit(EXIT_ERROR)
    out.print("sound")


def backup(
    folder: Folder,
    file: Archive,
    force: Annotated[bool, typer.Option("--force", help="Replace the file.")] = False,
) -> None:
    """Write a backup of a folder, also while another process serves it: all that is acknowledged.

    What lies outside the folder, such as checkpoints of runs, is not in it.
    """
    from fluss_df.client.transport.folders import back_up_folder

    with errors_as_messages():
        place, archive = folder.expanduser(), file.expanduser()
        if archive.exists() and not force:
            raise FlussError(f"{file} exists; --force replaces it")
        # a compressed backup is smaller, so the time shown is the most that is left
        with progress(
            "writing the backup",
            total=bytes_in(place / "data") + bytes_in(place / "lake" / "warehouse"),
            unit="bytes",
            poll=lambda: _newest_part(archive.parent),
        ):
            size = back_up_folder(place, archive)
    out.print(f"wrote {escape(str(file))}: {size:,} bytes")


def _newest_part(folder: Path) -> int:
    """Return the bytes of the backup that is being written in a folder."""
    from fluss_df.engine.upkeep.backup_parts import PART

    parts = [path.stat() for path in folder.glob(PART)]
    return max(parts, key=lambda part: part.st_mtime_ns).st_size


def restore(file: Archive, folder: Folder) -> None:
    """Put a backup into a new folder, and verify it."""
    from fluss_df.engine.upkeep.restore import restore as put_back

    with errors_as_messages():
        archive = file.expanduser()
        total = archive.stat().st_size if archive.is_file() else None
        with progress("restoring", total=total, unit="bytes") as seen:
            put_back(archive, folder.expanduser(), watch=lambda done: seen(done, None))
    check(folder)
