"""Records: bytes of log batches, keys and rows to and from Arrow, vectorised, without I/O."""
