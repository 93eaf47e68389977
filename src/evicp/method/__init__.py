"""The method of the paper: evidence, scores, temperature."""
