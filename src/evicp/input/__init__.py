"""User input: arrays, frames and class names, checked and converted once."""
