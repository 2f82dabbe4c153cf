"""Common parts of scans, sinks and runs."""
