"""From scores of true labels to thresholds, sets and what is guaranteed of them."""
