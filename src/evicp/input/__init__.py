"""What users give: arrays, frames and names of classes, checked and converted once."""
