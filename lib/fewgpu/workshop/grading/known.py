"""What can be wrong with any exercise, whatever it is about: the misconceptions that no grader has to list."""

from fewgpu.workshop.practice.misuse import MISUSES

KNOWN = {
    **MISUSES,
    'syntax-error': 'Python cannot read the file',
    'does-not-load': 'the file fails while Python reads it, before any function is called',
    'missing-function': 'a function that the exercise asks for is not in the file any more',
    'unsolved': 'this step is still to be written',
    'returns-nothing': 'the function returns None: is there a `return` on every way through it?',
    'signature': 'the function cannot be called with the arguments that its docstring names',
    'wrong-type': 'the check cannot use what the function returns: is it what its docstring promises?',
    'raises': 'the function raises an exception',
    'too-slow': 'the function does not come to an end',
    'too-much-memory': 'the function uses more memory than an exercise may',
    'prints-too-much': 'the file prints without end',
    'exits': 'the file stops Python (by sys.exit, exit or os._exit)',
    'killed': 'the system has ended Python, most likely for want of memory',
    'crashed': 'Python itself crashed',
    'starts-processes': 'the file starts another process: an exercise runs in one',
    'tampers': 'the file reaches for what belongs to the grader, the kit, Python or torch: an exercise is solved in '
               'the functions that it asks for',
    'handed-back': 'the file calls a finished answer, and this exercise is about writing it yourself',
}
"""By its stable id, in one sentence."""
