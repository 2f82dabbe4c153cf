"""Who may do what in an embedded engine, and how it knows who somebody is."""
