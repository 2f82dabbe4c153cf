"""The upkeep of lake tables: snapshots that nobody reads any more, and files that none has."""
