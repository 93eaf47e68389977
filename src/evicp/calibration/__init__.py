"""From scores of true labels to thresholds, sets and what may be promised of them."""
