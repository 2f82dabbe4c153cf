"""The coordinator of the lake: which tables are due, and how far they are tiered."""
