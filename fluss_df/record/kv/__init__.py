"""Batches and values of primary-key tables."""
