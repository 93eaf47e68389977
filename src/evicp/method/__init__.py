"""The paper: evidence, scores, temperature."""
