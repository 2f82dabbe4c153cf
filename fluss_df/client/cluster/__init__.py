"""What is known of the cluster, and requests to the right server of it."""
