"""The training state on its way to a rank that is behind: its layout in memory."""
