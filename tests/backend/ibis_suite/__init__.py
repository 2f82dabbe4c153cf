"""Ibis's own tests of backends, run against Fluss."""
