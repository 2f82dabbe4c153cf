"""SQL and Ibis over tables, whose scans read what they need."""
