"""What ``fluss-df doctor`` looks at."""
