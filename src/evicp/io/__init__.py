"""The outside world: files of logits, sets and calibrations."""
