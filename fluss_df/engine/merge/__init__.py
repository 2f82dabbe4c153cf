"""What changes make of rows: merge engines and aggregates."""
