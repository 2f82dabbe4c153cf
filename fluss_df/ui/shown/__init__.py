"""How the console shows things: values, numbers with units, plots."""
