"""Virtual tables made of a changelog."""
