"""Ibis expressions to Polars."""
