"""Graders: a learner's file is run in a process of its own, put to the test check by check, and judged.

A grader (`fewgpu/workshop/graders/NN_name.py`) is made of what is in `grader` (checks, hints, failures) and `law`
(answers against the truth, and which misconception would explain them); the learner's file is its `work`. `grade` runs
it in a process of its own (`child`), and what comes out is a `verdict`. Nothing that the runner needs imports torch.
"""
