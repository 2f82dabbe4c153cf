"""Writing Iceberg tables: data files, what replaces them, and the commit."""
