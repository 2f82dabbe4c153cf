"""Options, types and filters: what a task reads."""
