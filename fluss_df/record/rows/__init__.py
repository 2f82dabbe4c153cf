"""Rows as bytes."""
