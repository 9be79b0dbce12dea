"""VGG-16 as a chain of layers, with what each of them costs."""

VGG16 = [
    46.92, 9.999, 159.531, 9.766, 9.374, 54.803, 5.097, 75.441, 5.133, 4.999, 29.149, 2.757, 44.481, 3.103,
    48.133, 2.87, 2.682, 23.823, 1.722, 37.259, 1.527, 40.445, 1.523, 1.583, 12.989, 1.05, 11.466, 0.653, 12.69,
    0.63, 0.787, 0.0, 0.0, 7.05, 0.407, 0.0, 1.443, 0.309, 0.0, 0.941]
"""Milliseconds of forward and backward of each of its 40 layers, in order: convolutions with their ReLUs and poolings,
then the classifier. Measured on a GPU by the authors of PipeDream, in whose repository the profile is
(https://github.com/msr-fiddle/pipedream, MIT licence)."""
