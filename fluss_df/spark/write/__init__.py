"""Writing from tasks, and the ledger that makes a batch count once."""
