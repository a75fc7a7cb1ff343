"""From text, roles and ids to prompts, and from generated ids back to text."""
