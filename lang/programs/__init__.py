"""What `@ramet.function` makes, and the ways to run it: once, in batches, asynchronously."""
