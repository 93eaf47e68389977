"""The loops over logits: the same functions, by the same names, for each kind of array."""
