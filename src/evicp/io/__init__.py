"""Files of logits, sets and calibrations."""
