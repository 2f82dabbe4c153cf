"""What scans, sinks and runs share."""
