"""The logs of buckets: segments, offsets, writers, recovery."""
