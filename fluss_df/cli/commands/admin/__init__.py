"""Commands that administer: databases, tables, partitions, servers."""
