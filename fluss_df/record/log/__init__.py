"""Log batches."""
