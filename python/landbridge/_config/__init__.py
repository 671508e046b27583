"""The region file: where a trainer attaches, and as which rank."""
