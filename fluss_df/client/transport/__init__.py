"""Connections to one server: on the event loop, blocking, or into this process."""
