"""The graders: `NN_name.py` has the name of its exercise, and is found by it. The other files are what graders share."""
