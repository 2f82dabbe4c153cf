"""The client's view of its cluster, and requests to the right server."""
