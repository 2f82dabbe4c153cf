"""Databases, tables, partitions, and what a cluster keeps beside them."""
