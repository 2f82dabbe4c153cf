"""What scans are made of: what is known, planned, fetched and reported."""
