"""Tables as they are stored, and their properties."""
