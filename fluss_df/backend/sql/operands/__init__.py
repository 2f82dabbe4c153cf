"""Operands of SQL: the types that they have, and those that they need."""
