"""The version of fluss_df, in its one place."""

__version__ = "0.1.0"
