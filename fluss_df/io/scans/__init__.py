"""The parts of scans: known tables, planning, fetching and reports."""
