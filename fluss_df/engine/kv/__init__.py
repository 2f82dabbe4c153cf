"""The rows of primary-key tables."""
