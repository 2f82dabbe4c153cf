"""Log batches, remote segments and values: from a server to Arrow."""
