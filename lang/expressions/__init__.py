"""What programs append: `gen`, `select`, roles, and the nodes that these are."""
