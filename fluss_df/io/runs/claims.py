"""Compares a checkpoint with what its run has written into a table."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
from pathlib import Path

from fluss_df.errors import ErrorCode, FlussError
from fluss_df.io.runs.losses import Losses
from fluss_df.io.runs.micro_batches import MicroBatch
from fluss_df.io.runs.run_register import Link, RunNames, RunRegister
from fluss_df.io.runs.written import overlapping, positions, where
from fluss_df.schema import TableInfo

logger = logging.getLogger(__name__)


class Claims:
    """The chain of a run's batches, as the cluster of its target knows them.

    Parameters
    ----------
    register
        Where they are noted; None to do without it.
    names
        The run, what it reads and where it writes.
    info
        The table that it writes to.
    folder
        The checkpoint's.
    query
        The query as text.
    plan
        The digest of the query's plan; None where it cannot be had.
    losses
        What is done where notes are missing.

    Attributes
    ----------
    link
        The newest batch that the checkpoint knows of.
    told
        Whether commits say which one that is.
    """

    def __init__(
        self,
        register: RunRegister | None,
        names: RunNames,
        info: TableInfo,
        folder: Path,
        query: str,
        plan: str | None,
        losses: Losses,
    ) -> None:
        self._register = register
        self._names = names
        self._info = info
        self._folder = folder
        self._query = query
        self._digest = hashlib.sha256(query.encode()).hexdigest()
        self._plan = plan
        self._losses = losses
        self.link: Link | None = None
        self.told = False
        self._first = False

    def check(self, staged: Link | None, known: Link | None, told: bool) -> None:
        """Compare the register with what the checkpoint says.

        ``staged`` is the batch that is staged and not committed, and ``known`` the newest committed
        batch that had rows. ``told`` says whether the checkpoint names the latter: those of earlier
        releases do not.
        """
        self.link = known
        self.told = told or self._register is not None
        if self._register is None:
            return
        found = self._register.find(self._names.run_id)
        self._first = found is None and known is None and told
        if found is not None and found in (known, staged):
            self.link = found
            return
        if found is None and (known is None or not told):
            return
        newest = known or staged
        if known is not None and (found is None or found.batch < known.batch):
            noted = "nothing of this run" if found is None else f"batch {found.batch} as its newest"
            self._losses.found(
                f"table {self._register.path} notes {noted}, and checkpoint {self._folder} has"
                f" written up to batch {known.batch} into table {self._names.target}: the table of"
                " notes, or the cluster, was deleted or put back to an earlier state, and"
                " what was written since may be gone with it",
                ErrorCode.LOG_STORAGE_EXCEPTION,
            )
            self.link = found
            return
        assert found is not None
        raise self._ahead(found, newest)

    def _ahead(self, found: Link, known: Link | None) -> FlussError:
        if known is None:
            then = "nothing"
        elif known.batch == found.batch:
            then = f"another batch {known.batch}"
        else:
            then = f"batch {known.batch} as the newest"
        other = found.about.get("checkpoint")
        by = f", by checkpoint {other}," if other not in (None, str(self._folder)) else ""
        return FlussError(
            f"table {self._names.target} has batch {found.batch} of this run"
            f"{where(found.about)}{by} and checkpoint {self._folder} knows of {then}: it was put"
            " back to an earlier state, or a copy of it ran, so that rows would be lost, or written"
            " twice. Go on with the newest checkpoint; or start over with another one, from the"
            " offsets named here (scan_fluss(start=...))"
        )

    def claim(self, batch: MicroBatch, name: str) -> None:
        """Note a batch, or raise where it is not the next one."""
        if self._register is None:
            return
        about = {
            "positions": positions(batch.planned.splits),
            "checkpoint": str(self._folder),
            "query": self._digest,
            "plan": self._plan,
        }
        link = Link(batch.number, name, about)
        if self._first:
            self._refuse_second_run(batch)
            self._first = False
        found = self._register.claim(self._names, link, self.link)
        if found is not None and found != link:
            raise self._ahead(found, self.link)
        self.link = link

    def _refuse_second_run(self, batch: MicroBatch) -> None:
        """Refuse to write the rows of another run of the same query a second time."""
        engine = self._info.get_properties().get("table.merge-engine", "").lower()
        if self._info.has_primary_key() and engine != "aggregation":
            # writing the same rows again would change nothing
            return
        assert self._register is not None
        for other in self._register.others(self._names):
            # notes of earlier releases have the query's text itself
            if other.about.get("query") not in (self._digest, self._query):
                continue
            twice = overlapping(other.about, batch.planned.splits)
            if twice is None:
                continue
            text = (
                f"rows of table {self._names.source} that this query reads, {twice} among them,"
                f" are in table {self._names.target}: checkpoint"
                f" {other.about.get('checkpoint')} wrote up to batch {other.batch} of"
            )
            begin = "go on with it, or begin behind it with scan_fluss(start=...)"
            if self._plan is None or other.about.get("plan") != self._plan:
                # the text shows no in-memory frames, functions and more: it may be another query
                logger.warning(
                    "%s a query that reads the same as text; where it is the same, rows are there"
                    " twice: %s",
                    text,
                    begin,
                )
                continue
            losses = dataclasses.replace(
                self._losses, way_out="on_data_loss='ignore' writes them a second time"
            )
            losses.found(f"{text} the same query; {begin}", ErrorCode.DUPLICATE_SEQUENCE_EXCEPTION)
            return
