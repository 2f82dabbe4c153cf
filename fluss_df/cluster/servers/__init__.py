"""The servers of a cluster: jars, configuration, processes."""
