"""Lake tables in Iceberg."""
