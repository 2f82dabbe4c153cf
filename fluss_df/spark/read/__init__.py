"""Reading from tasks and streams."""
