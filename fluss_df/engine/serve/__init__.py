"""Sockets and threads: how requests reach the engine."""
