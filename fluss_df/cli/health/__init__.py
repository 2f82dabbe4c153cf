"""The checks of ``fluss-df doctor``."""
