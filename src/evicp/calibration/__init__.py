"""Calibration: thresholds, prediction sets and guarantees from the scores of true labels."""
