"""Primary-key tables: upsert writers, lookupers, and their builders."""

from __future__ import annotations

from collections.abc import Sequence

import fluss_df.client.lookup.lookuper as core_lookup
import fluss_df.client.write.upsert as core_upsert
from fluss_df.aio.bridge import Facade, giving, on_thread
from fluss_df.aio.writer import Writer, WriteResultHandle


class UpsertWriter(Writer[core_upsert.UpsertWriter]):
    """Upserts and deletes rows of a primary-key table, for any number of tasks and threads.

    What is written is checked at once and sent in the background; :meth:`flush` waits until all
    of it is acknowledged. Use it in an ``async with`` statement, or await :meth:`close`: both
    flush and report what was not acknowledged.
    """

    upsert = giving(WriteResultHandle, core_upsert.UpsertWriter.upsert)
    delete = giving(WriteResultHandle, core_upsert.UpsertWriter.delete)
    delete_arrow = giving(WriteResultHandle, core_upsert.UpsertWriter.delete_arrow)
    write_changes = giving(WriteResultHandle, core_upsert.UpsertWriter.write_changes)


class TableUpsert(Facade[core_upsert.TableUpsert]):
    """Builds upsert writers."""

    def partial_update_by_name(self, columns: Sequence[str]) -> TableUpsert:
        """Return a builder whose writers update some columns only."""
        return TableUpsert(self._core.partial_update_by_name(columns))

    def partial_update_by_index(self, column_indices: Sequence[int]) -> TableUpsert:
        """Return a builder whose writers update some columns only, by their index."""
        return TableUpsert(self._core.partial_update_by_index(column_indices))

    create_writer = giving(UpsertWriter, core_upsert.TableUpsert.create_writer)


class Lookuper(Facade[core_lookup.Lookuper]):
    """Looks up rows by their primary key, for any number of tasks and threads."""

    lookup = on_thread(core_lookup.Lookuper.lookup)
    lookup_arrow = on_thread(core_lookup.Lookuper.lookup_arrow)
    prefix_lookup = on_thread(core_lookup.Lookuper.prefix_lookup)
    prefix_lookup_arrow = on_thread(core_lookup.Lookuper.prefix_lookup_arrow)


class PrefixLookuper(Facade[core_lookup.PrefixLookuper]):
    """Looks up rows by a prefix of their primary key, for any number of tasks and threads."""

    lookup = on_thread(core_lookup.PrefixLookuper.lookup)
    lookup_arrow = on_thread(core_lookup.PrefixLookuper.lookup_arrow)


class TablePrefixLookup(Facade[core_lookup.TablePrefixLookup]):
    """Builds lookupers by a prefix of the key."""

    create_lookuper = giving(PrefixLookuper, core_lookup.TablePrefixLookup.create_lookuper)


class TableLookup(Facade[core_lookup.TableLookup]):
    """Builds lookupers."""

    create_lookuper = giving(Lookuper, core_lookup.TableLookup.create_lookuper)
    lookup_by = giving(TablePrefixLookup, core_lookup.TableLookup.lookup_by)
