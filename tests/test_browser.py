"""A lesson in JupyterLab, in a real browser: what a learner sees, and what mouse and keys do.

One copy of the clone, one JupyterLab and one Chromium serve all tests of this file, in their order.
Every step leaves a screenshot in pytest's folder for temporary files.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver import ActionChains
from selenium.webdriver.common.keys import Keys

from fewgpu import schedule
from fewgpu.simulate import Costs, simulate
from fewgpu.workshop.exercise import all_exercises
from tests.browser import CHROMIUM, DRIVER, ROOT, Lab, Page, until

LESSON = '00_welcome.ipynb'
CELLS = json.loads((ROOT / 'notebooks' / LESSON).read_text(encoding='utf-8'))['cells']
MICROBATCH = '01_microbatch.py'

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.name == 'nt', reason='ends JupyterLab by a signal'),
    pytest.mark.skipif(not CHROMIUM, reason='needs Chromium (Debian: apt-get install chromium)'),
    pytest.mark.skipif(not DRIVER, reason='needs chromedriver (Debian: apt-get install chromium-driver)'),
]


def number(text: str) -> int:
    """Of the one code cell that has this text."""
    found, = (number for number, cell in enumerate(CELLS)
              if cell['cell_type'] == 'code' and text in ''.join(cell['source']))
    return found


def processes(folder: Path) -> list[str]:
    """Whatever runs with this folder in its command line."""
    running = subprocess.check_output(['ps', 'axww', '-o', 'args'], text=True)
    return [line for line in running.splitlines() if str(folder) in line]


@pytest.fixture(scope='module')
def lab(tmp_path_factory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp('lab')
    lab = Lab(folder, LESSON)
    try:
        lab.wait_until_it_answers()
        yield lab
    finally:
        lab.end()
    until(lambda: not processes(folder), f'the end of {processes(folder)}')


@pytest.fixture(scope='module')
def opened(lab, tmp_path_factory) -> Iterator[Page]:
    """The lesson, opened by a double click; nothing has run yet."""
    page = Page(tmp_path_factory.mktemp('page'))
    try:
        page.open(lab.address, LESSON, len(CELLS))
        yield page
    finally:
        page.shoot('last')
        page.browser.quit()


@pytest.fixture(scope='module')
def ran(opened) -> Page:
    """The lesson, all cells run."""
    opened.run_all()
    return opened


@pytest.fixture(autouse=True)
def no_complaints(opened) -> Iterator[None]:
    """No test may end with a dialog, an error of a cell, or one of the page's own."""
    yield
    assert opened.complaints() == []


def shows_pictures(page: Page, cell: int, count: int) -> None:
    until(lambda: len(page.pictures(cell)) == count, f'the pictures of cell {cell}')


def test_before_anything_runs_the_stored_outputs_are_shown(opened):
    for count, cell in enumerate(CELLS):
        outputs = cell.get('outputs', [])
        shows_pictures(opened, count, sum('image/png' in output.get('data', {}) for output in outputs))
    prediction = opened.cell(number('compare(my_guess'))
    assert opened.all('.jp-OutputPlaceholder', prediction), 'the answer to a prediction is to be folded'
    assert not opened.all('.jp-OutputArea-output', prediction)
    panel = number('Panel(draw')
    assert opened.pictures(panel) and not opened.all('.jupyter-widgets', opened.cell(panel))
    opened.shoot('stored')


def test_all_cells_run_without_an_error_and_show_their_pictures(ran):
    assert ran.complaints() == []
    assert ran.prompts() == [f'[{count}]:' for count in range(1, len(ran.prompts()) + 1)]
    assert ran.output(number('compare(my_guess')).startswith('Found: 94')
    shows_pictures(ran, number('plot.timeline(timeline'), 1)
    shows_pictures(ran, number('Panel(draw'), 1)
    for count in range(0, len(CELLS), 2):
        ran.cell(count)
        ran.shoot(f'ran_{count:02}')


class Sliders:
    """The lesson's panel."""

    def __init__(self, page: Page) -> None:
        self.page, self.cell = page, page.cell(number('Panel(draw'))
        until(lambda: self.shows() and self.source(), 'the panel')
        self.devices, self.pieces = page.all('[role="slider"]', self.cell)

    def values(self) -> list[int]:
        return [int(readout.text) for readout in self.page.all('.widget-readout', self.cell)]

    def line(self) -> str:
        return self.page.all('.widget-html-content', self.cell)[0].text

    def source(self) -> str:
        image, = self.page.pictures(number('Panel(draw'))
        return image.get_attribute('src')

    def shows(self) -> bool:
        """Does the line say what is true of where the sliders stand?"""
        plan = simulate(schedule.gpipe(*self.values()), Costs(F=1, B=2))
        return self.line() == f'idle: {plan.bubble:.0%} of the time'


def test_a_slider_moved_by_key_or_mouse_redraws_the_picture_and_the_line(ran):
    panel = Sliders(ran)
    assert panel.values() == [4, 8]
    labels = ran.all('.widget-label', panel.cell)
    assert all(label.get_property('scrollWidth') <= label.get_property('clientWidth') for label in labels)

    line, source = panel.line(), panel.source()
    panel.pieces.send_keys(Keys.ARROW_RIGHT)
    until(lambda: panel.values() == [4, 9] and panel.shows() and panel.source() != source, 'the next picture')
    assert panel.line() != line
    ran.shoot('slider_by_key')

    line, source = panel.line(), panel.source()
    ActionChains(ran.browser).drag_and_drop_by_offset(panel.devices, 60, 0).perform()
    until(lambda: panel.values()[0] > 4 and panel.shows() and panel.source() != source, 'the next picture')
    assert panel.values()[1] == 9 and panel.line() != line
    ran.shoot('slider_by_mouse')


def test_a_panel_fits_into_a_narrow_window(ran):
    size = ran.browser.get_window_size()
    output, = ran.all('.jp-OutputArea-output', ran.cell(number('Panel(draw')))
    before = output.size['width']
    ran.browser.set_window_size(800, size['height'])
    until(lambda: output.size['width'] < before, 'the page to become narrow')
    until(lambda: output.get_property('scrollWidth') <= output.get_property('clientWidth'), 'it to fit')
    assert output.size['width'] < before
    ran.shoot('narrow')
    ran.browser.set_window_size(size['width'], size['height'])
    until(lambda: output.size['width'] == before, 'the page to become wide')


def test_a_check_says_in_the_lesson_what_is_missing_and_that_a_solution_is_right(ran, lab):
    check, results = number('check(1)'), number("workshop('list')")
    lines = ran.output(check).splitlines()
    assert lines[0] == f'exercises/{MICROBATCH}' and '0 of 10 points.' in lines
    ran.shoot('check_unsolved')

    solution = (lab.clone / 'solutions' / MICROBATCH).read_text(encoding='utf-8')
    (lab.clone / 'exercises' / MICROBATCH).write_text(solution, encoding='utf-8')
    ran.run(check)
    until(lambda: '\n10 of 10 points.' in ran.output(check), 'the verdict')
    assert ran.output(check).startswith(f'exercises/{MICROBATCH}\n')
    ran.shoot('check_solved')
    assert (lab.clone / 'exercises/progress.json').is_file()   # of the copy, not of the clone that is tested

    ran.run(results)
    until(lambda: f'\n1 of {len(all_exercises())} done' in ran.output(results), 'the results')


def test_a_command_in_a_cell_prints_its_result_and_no_animation(ran):
    said = ran.output(number("workshop('doctor')"))
    assert '\nok ' in said and 'looking' not in said


def test_a_saved_lesson_that_is_opened_another_day_still_shows_its_pictures(ran, lab):
    ran.menu('File', 'Save Notebook')
    file = lab.clone / 'notebooks' / LESSON
    until(lambda: 'widgets' in json.loads(file.read_text(encoding='utf-8'))['metadata'], 'the saved lesson')
    ran.menu('Kernel', 'Shut Down Kernel')
    until(lambda: 'No Kernel | Unknown' in ran.states(), 'the end of the kernel')
    ran.menu('File', 'Close Tab')
    until(lambda: not ran.all('.jp-Notebook'), 'the lesson to close')
    ran.open(lab.address, LESSON, len(CELLS))
    assert ran.output(number('compare(my_guess')).startswith('Found: 94')
    shows_pictures(ran, number('plot.timeline(timeline'), 1)
    shows_pictures(ran, number('Panel(draw'), 1)
    ran.shoot('another_day')
