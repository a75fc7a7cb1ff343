"""What a program appends to and reads from: its text, its variables, its branches."""
