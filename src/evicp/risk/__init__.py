"""Promises beyond the coverage of one label: a bounded risk, answers or abstention, several labels at once."""
