"""What runs the lessons as tests finds what is wrong with them."""

import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[1]
PLOT = 'from fewgpu.plot import Picture\nfigure = Picture(figsize=(4, 3))\n'
CELLS = {
    'fine': (PLOT + "figure.text(0.2, 0.5, 'one')\nfigure", 0, ''),
    'over': (PLOT + "figure.text(0.2, 0.5, 'one'); figure.text(0.21, 0.5, 'two')\nfigure", 1, 'lie over each other'),
    'panel': ('from fewgpu.workshop.panel import Panel, Slider\n' + PLOT +
              "figure.text(0.2, 0.5, 'one')\nPanel(lambda size: figure.texts[0].set_fontsize(size) or figure, "
              'size=Slider(9, 4, 12))', 1, 'has 4 points'),
    'solved': ("from fewgpu.workshop import check\nassert check(1).verdict.file.endswith('solutions/01_microbatch.py')",
               0, ''),
    'other': ("print('one')", 1, 'two'),
}


@pytest.mark.slow
@pytest.mark.parametrize('name', CELLS)
def test_a_lesson_is_run_as_it_should_be(name, tmp_path):
    source, code, said = CELLS[name]
    cell = nbformat.v4.new_code_cell(source)
    if name == 'other':
        cell.outputs = [nbformat.v4.new_output('stream', name='stdout', text='two\n')]
    else:
        cell.metadata['tags'] = ['nbval-ignore-output']
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), tmp_path / 'lesson.ipynb')
    command = [sys.executable, '-m', 'pytest', '-p', 'tests.lessons', '--nbval', '--nbval-current-env',
               '-p', 'no:cacheprovider', '--rootdir', str(ROOT), str(tmp_path / 'lesson.ipynb')]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False,
                          env={**os.environ, 'PYTHONPATH': str(ROOT / 'lib')})
    assert done.returncode == code, done.stdout
    assert said in done.stdout
