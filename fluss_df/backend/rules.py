"""Translations that Ibis's Polars backend lacks, or that fail on a release of Polars."""
