"""Statements in SQL."""
