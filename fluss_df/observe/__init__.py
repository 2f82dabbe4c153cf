"""Counters, spans and logs of a process; other packages export them."""
