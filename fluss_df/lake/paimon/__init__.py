"""Lake tables in Paimon."""
