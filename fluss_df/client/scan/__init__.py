"""The scanners that users have: logs, changes, first rows, current rows."""
