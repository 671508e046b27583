"""The script of the README, `examples/two_regions.py`, with another number of epochs."""

from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples/two_regions.py"
#: The line of the example that ends the training. The number of epochs is replaced.
LAST_EPOCH_LINE = "if epoch == 8:"
#: Steps of one epoch of the example: 2,048 samples in batches of 64.
EPOCH_STEPS = 32


def write_script(folder, epochs):
    """Writes the example with another number of epochs. Returns its path."""
    text = EXAMPLE.read_text("utf-8")
    assert text.count(LAST_EPOCH_LINE) == 1, f"{EXAMPLE} has no line {LAST_EPOCH_LINE!r}"
    script = Path(folder, EXAMPLE.name)
    script.write_text(text.replace(LAST_EPOCH_LINE, f"if epoch == {epochs}:"), "utf-8")
    return script
