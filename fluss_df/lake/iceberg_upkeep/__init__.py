"""The upkeep of Iceberg tables: snapshots that nobody reads any more, and files that none has."""
