"""The kit against its peers: `python -m tests.bench pipeline`. Nothing here asserts a speed."""
