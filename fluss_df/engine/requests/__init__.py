"""Requests to responses."""
