"""Benchmarks: fluss_df beside the official client, on one server, interleaved in one run."""
