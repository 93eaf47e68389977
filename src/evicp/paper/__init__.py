"""The paper's experiments: its figures as data, trials under two protocols, tables, figures, one page."""
