"""Output, options and values as texts."""
