"""Micro-batches over a log as it grows, each row once."""
