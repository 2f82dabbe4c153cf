"""Threads, waits and retries that every part of the client uses."""
