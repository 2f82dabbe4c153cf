"""Tables of the connection."""
