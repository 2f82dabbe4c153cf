"""The data lake behind Fluss: Iceberg tables that hold what a tiering service moved there."""
