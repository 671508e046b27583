"""The memory that a trainer shares with its gateway, and arrays over it."""
