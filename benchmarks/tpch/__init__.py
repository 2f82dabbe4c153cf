"""TPC-H: its data, and its 22 queries as lazy frames."""
