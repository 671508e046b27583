"""The state of a rank on its way to ranks that lack it, from several ranks at once."""
