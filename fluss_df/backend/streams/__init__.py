"""Expressions over logs that grow."""
