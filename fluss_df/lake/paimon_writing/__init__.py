"""Writing Paimon tables: data files, manifests, and the commit."""
