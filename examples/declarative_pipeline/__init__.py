"""A declarative pipeline of Spark over Fluss tables."""
