"""Lake tables in Lance: their fragments and rows."""
