"""Which partition and bucket a row goes to."""
