"""The bank: right and wrong answers to every exercise, to put the graders to the test.

    tests/bank/05_gpipe_schedule/right_by_clock.py       must pass
    tests/bank/05_gpipe_schedule/wrong_backward.py       must fail, and be named: `# misconception: ...` in its first line

An answer is what a learner would hand in. A file with the suffix .steps has only `# STEP n` to `# END` blocks, and
stands for the solution with these steps in place of its own.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from fewgpu.workshop.exercise import Exercise, all_exercises

BANK = Path(__file__).parent / 'bank'
_EXPECTED = re.compile(r'# misconception: ([\w-]+)\n')
_STEP = re.compile(r'^[ ]*# STEP (\d+)\b.*?^[ ]*# END\n', re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Answer:
    exercise: Exercise
    file: Path

    @property
    def is_right(self) -> bool:
        return self.file.stem.startswith('right_')

    @property
    def misconception(self) -> str:
        """What a wrong answer shall be told. Raises AttributeError if its first line does not say."""
        return _EXPECTED.match(self.file.read_text(encoding='utf-8'))[1]

    def text(self) -> str:
        """The whole file that is handed in."""
        text = self.file.read_text(encoding='utf-8')
        if self.file.suffix != '.steps':
            return text
        steps = {match[1]: match[0] for match in _STEP.finditer(text)}
        solution = self.exercise.solution.read_text(encoding='utf-8')
        return _STEP.sub(lambda match: steps.get(match[1], match[0]), solution)

    def __str__(self) -> str:
        return f'{self.exercise.number:02}-{self.file.stem}'


def all_answers() -> list[Answer]:
    return [Answer(exercise, file) for exercise in all_exercises()
            for file in sorted((BANK / exercise.name).iterdir()) if file.suffix in ('.py', '.steps')]
