"""Kinds of guarantee: what decides the threshold of a label in a row."""
