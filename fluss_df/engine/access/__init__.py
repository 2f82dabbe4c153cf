"""Access control of an embedded engine: authentication, rights and decisions."""
