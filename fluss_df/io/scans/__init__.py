"""Tables as lazy frames."""
