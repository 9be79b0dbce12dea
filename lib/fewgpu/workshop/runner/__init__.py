"""What learners type: one module a command. `show` and `cell` draw a verdict, `progress` remembers it.

Nothing here imports torch before it is needed: the process that runs a learner's file does.
"""
