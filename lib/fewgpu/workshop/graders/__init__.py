"""The graders, one file an exercise, with the exercise's name."""
