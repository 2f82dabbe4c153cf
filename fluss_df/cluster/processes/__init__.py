"""Processes that end with their owner."""
