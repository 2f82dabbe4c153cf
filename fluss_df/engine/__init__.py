"""The embedded engine: a single-node Fluss over a folder; users open it by fluss_df.embedded."""
