"""Values of Python, checked and gathered into Arrow."""
