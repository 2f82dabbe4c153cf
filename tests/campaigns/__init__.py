"""Long trials, run by hand: each is a program with ``--help``."""
