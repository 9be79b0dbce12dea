"""What can be wrong with any exercise, whatever it is about: the misconceptions that no grader has to list."""

KNOWN = {
    'syntax-error': 'Python cannot read the file',
    'does-not-load': 'the file fails while Python reads it, before any function is called',
    'missing-function': 'a function that the exercise asks for is not in the file any more',
    'unsolved': 'this step is still to be written',
    'returns-nothing': 'the function returns None: is there a `return` on every way through it?',
    'signature': 'the function cannot be called with the arguments that its docstring names',
    'wrong-type': 'what the function returns is not of the type that its docstring promises',
    'raises': 'the function raises an exception',
    'too-slow': 'the function does not come to an end',
    'too-much-memory': 'the function uses more memory than an exercise may',
    'prints-too-much': 'the file prints without end',
    'exits': 'the file ends Python',
    'crashed': 'Python itself crashed',
    'starts-processes': 'the file starts another process: an exercise runs in one',
    'deadlock': 'all ranks wait, and none of them can go on',
    'talks-to-itself': 'a rank sends a message to itself, or waits for one from itself',
    'no-such-rank': 'a rank names another that is not there: the numbers go round, by % size',
    'never-received': 'a message is sent that nobody receives: every send needs a receive at the other end',
    'never-waited': 'a reduction is started, and nobody waits for its end: what is in the tensor is not the sum yet',
    'different-reductions': 'the ranks do not start the same reductions in the same order: the first of one rank goes with '
                            'the first of every other, whatever is in it',
    'changed-in-flight': 'a tensor is changed while its reduction goes on: until wait() it belongs to the network',
    'handed-back': 'the task is handed back to a finished answer, and this exercise is about writing it',
}
"""By its stable id, in one sentence."""
