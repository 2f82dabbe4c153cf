"""What clients ask about the server: its tables, their keys, and its SQL."""
