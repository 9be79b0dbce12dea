"""From a solution to the exercise: the marked steps are taken out again.

A step is marked in the solution by comments. The first says what to do, and further ones before
the code give a hint; `was:` is what the plain script has in this place.

    # STEP 4: wrap the model in GPipe
    # Hint: GPipe(model, balance, devices=..., chunks=..., checkpoint=...)
    # was: model.to(device)
    model = GPipe(model, balance, devices=devices)
    # END

In the exercise it reads

    # TODO STEP 4: wrap the model in GPipe
    # Hint: GPipe(model, balance, devices=..., chunks=..., checkpoint=...)
    model.to(device)
    # END
"""

import re
from collections.abc import Iterator

_STEP = re.compile(r'(\s*)# STEP (\d+): ')
_WAS = re.compile(r'(\s*)# was: ')


def strip(solution: str) -> str:
    """The exercise of a solution, as text; commands in it run the exercise.

    Raises ValueError for a step without END.
    """
    stripped = ''.join(_stripped(solution.splitlines(keepends=True)))
    return stripped.replace('run solutions/', 'run exercises/')   # how to run it


def _stripped(lines: list[str]) -> Iterator[str]:
    step, in_comment = None, False
    for line in lines:
        if step is None:
            if match := _STEP.match(line):
                step, in_comment = match[2], True
                line = line.replace('# STEP', '# TODO STEP', 1)
            yield line
        elif line.strip() == '# END':
            step = None
            yield line
        elif _WAS.match(line):
            yield _WAS.sub(r'\1', line)
        elif in_comment and line.lstrip().startswith('#'):
            yield line
        else:
            in_comment = False
    if step is not None:
        raise ValueError(f'STEP {step} of the solution has no END: mark it by a line with `# END` alone')
