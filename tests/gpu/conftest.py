"""What is not a test here is imported by the tests, not collected: it needs torch and Triton."""

collect_ignore = ["agreement.py", "hard_rows.py", "interpreted.py"]
