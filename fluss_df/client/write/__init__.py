"""The writers that users have, and how rows become batches."""
