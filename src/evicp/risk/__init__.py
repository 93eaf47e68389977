"""Guarantees beyond the coverage of one label: bounded risk, selective answers, several labels per row."""
