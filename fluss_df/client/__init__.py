"""The client: connections, metadata, scans, writers."""
