"""Programs that show fluss_df at work."""
