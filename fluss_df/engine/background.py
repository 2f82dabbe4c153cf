"""The background work of an engine, on its event loop: syncs, checks, a watch on its folder."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from fluss_df.engine.files.ownership import FolderLock, FolderLostError
from fluss_df.engine.files.rate_limited_log import SeldomLogger
from fluss_df.engine.group_commit import Run, sync_once
from fluss_df.engine.open_bucket import OpenBucket
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.metadata import TableBucket

logger = logging.getLogger(__name__)
seldom = SeldomLogger(logger)

_SYNC_INTERVAL_S: Final = 1.0
_CHECK_INTERVAL_S: Final = 60.0
_WATCH_INTERVAL_S: Final = 1.0


async def sync_for_ever(buckets: Mapping[TableBucket, OpenBucket], run: Run) -> None:
    """Sync the buckets that were written to, one after the other; pause a second; and so on."""
    while True:
        await asyncio.sleep(_SYNC_INTERVAL_S)
        for opened in list(buckets.values()):
            if opened.dirty:
                try:
                    await sync_once(opened, run)
                except FlussError as error:
                    # a table that was dropped meanwhile needs none; a bucket that is not written to
                    # any more after an error fails each time
                    if error.error_code != ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION:
                        seldom.warning("a sync failed: %s", error.message)
                except Exception:
                    logger.exception("a sync failed")


async def watch_folder(lock: FolderLock, when_lost: Callable[[], Awaitable[None]]) -> None:
    """Look once a second whether the folder is where it was, also where nobody writes.

    Where it is not, call ``when_lost``, and end.
    """
    while True:
        try:
            lock.verify()
        except FolderLostError:
            break
        except Exception:
            logger.exception("cannot look at the folder; it is tried again")
        await asyncio.sleep(_WATCH_INTERVAL_S)
    await when_lost()


async def check_for_ever(
    run: Callable[[Callable[[], object]], Awaitable[object]],
    works: Callable[[], Sequence[Callable[[], object]]],
) -> None:
    """Run each of some functions once a minute, until the folder is lost.

    One that fails does not keep the others from being done.
    """
    while True:
        await asyncio.sleep(_CHECK_INTERVAL_S)
        for work in works():
            try:
                await run(work)
            except FolderLostError:
                # watch_folder sees it too, and leaves the folder to whoever opens it next
                return
            except Exception:
                logger.exception("background work failed; it is tried again")
