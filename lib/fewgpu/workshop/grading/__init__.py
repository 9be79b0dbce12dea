"""Graders: a learner's file is run in a process of its own, put to the test check by check, and judged.

A grader (`fewgpu/workshop/graders/NN_name.py`) is made of what is in `grader` (checks, hints, failures) and `law`
(answers against the truth, and which misconception would explain them); the learner's file is its `work`. `grade` runs
it in a process of its own (`child`), and what comes out is a `verdict`. Nothing that the runner needs imports torch.

A learner's file runs in the process of its checks, under the learner's own account. What it may do there by Python's
means is kept away from the verdict, and named as misconception `tampers`:

    it writes a verdict of its own                  each line of the grader has a proof (`channel`)
    it exchanges what judges, in the kit or torch   all of it is looked at after each call and each check (`guard`)
    it returns objects that are equal to all        answers are copied to plain values (`plain`)
    it looks for the answer in frames and objects   Python's audit hooks refuse them (`reach`)
    it reads a solution, or asks a grader           that is `handed-back` (`reach`, `forbid`)
    it changes progress, the kit or other exercises refused, where Python opens files (`reach`)
    it starts processes                             refused (`forbid`), and found by their mark at the end (`grade`)

Not defended: code in C, or of torch that writes files without Python (`torch.save` by a file's name), may do what the
learner's account may; threads can be faster than a look; and whoever edits progress.json by hand is not stopped. A
verdict is for whoever wants to learn. Where points decide something, grade the files on an account of your own.
"""
