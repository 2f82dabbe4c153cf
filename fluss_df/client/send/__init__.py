"""Batches on their way: the queue of each bucket, and the sender that moves it."""
