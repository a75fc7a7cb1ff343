"""The KV memory: which slots there are, and which prefixes they hold. No tensors."""
