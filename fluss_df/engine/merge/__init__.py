"""Merge engines and aggregates: compute the new rows of a primary-key table."""
