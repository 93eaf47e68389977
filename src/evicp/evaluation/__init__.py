"""Evaluation: metrics, comparisons, tuning, explanations."""
