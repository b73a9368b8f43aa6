"""Secret managers that the values of secrets may stay in, and references to them."""
