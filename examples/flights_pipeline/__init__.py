"""A data pipeline on Spark and Fluss: flights as events, cleaned, enriched, counted."""
