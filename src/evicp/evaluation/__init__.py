"""What sets are worth: metrics, comparisons, tuning, explanations."""
