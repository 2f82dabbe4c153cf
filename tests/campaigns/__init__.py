"""Long runs of what the tests run briefly; each is a command, see its module."""
