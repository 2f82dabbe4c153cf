"""From a query to the little that must be read for it: predicates, pruning, scan plans.

Nothing here does I/O. Each step returns what it could use and what is left for the caller to
evaluate, so that a result never depends on what was pushed down.
"""
