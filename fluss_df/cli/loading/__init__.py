"""Files into tables."""
