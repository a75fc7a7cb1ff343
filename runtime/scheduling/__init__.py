"""Which request runs when, and what becomes of its answers. No tensors."""
