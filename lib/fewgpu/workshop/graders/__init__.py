"""The graders: `NN_name.py` is found by the name of its exercise. The other files are what graders are made of."""
