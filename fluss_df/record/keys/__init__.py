"""Keys, buckets and names of partitions."""
