"""Lessons of the second half in a real browser: all cells run, and whatever is moved on a panel redraws its picture."""

import json
import os
from collections.abc import Iterator

import pytest
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

from tests.browser import CHROMIUM, DRIVER, ROOT, Lab, Page, until

LESSONS = '10_stale_weights.ipynb', '14_which_one_when.ipynb'
SLIDER, CHOICE = '[role="slider"]', '.widget-dropdown select'

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.name == 'nt', reason='ends JupyterLab by a signal'),
    pytest.mark.skipif(not CHROMIUM, reason='needs Chromium (Debian: apt-get install chromium)'),
    pytest.mark.skipif(not DRIVER, reason='needs chromedriver (Debian: apt-get install chromium-driver)'),
]


@pytest.fixture(params=LESSONS)
def lesson(request) -> str:
    return request.param


@pytest.fixture
def ran(lesson, tmp_path) -> Iterator[Page]:
    """The lesson, all cells run."""
    cells = json.loads((ROOT / 'notebooks' / lesson).read_text(encoding='utf-8'))['cells']
    lab = Lab(tmp_path / 'lab', lesson)
    page = None
    try:
        lab.wait_until_it_answers()
        page = Page(tmp_path)
        page.open(lab.address, lesson, len(cells))
        page.run_all()
        yield page
    finally:
        if page:
            page.shoot('last')
            page.browser.quit()
        lab.end()


def panels(lesson: str) -> list[int]:
    """The cells of the lesson that end in a panel."""
    cells = json.loads((ROOT / 'notebooks' / lesson).read_text(encoding='utf-8'))['cells']
    return [number for number, cell in enumerate(cells)
            if cell['cell_type'] == 'code' and '\nPanel(' in '\n' + ''.join(cell['source'])]


def test_all_cells_run_and_everything_on_a_panel_moves_its_picture(ran, lesson):
    assert ran.prompts() == [f'[{count}]:' for count in range(1, len(ran.prompts()) + 1)]
    assert panels(lesson)
    for number in panels(lesson):
        until(lambda number=number: ran.pictures(number), 'the picture of the panel')
        cell = ran.cell(number)
        ran.shoot(f'panel_{number}')
        controls = ran.all(f'{SLIDER}, {CHOICE}', cell)
        assert controls
        for count, control in enumerate(controls):
            before = ran.pictures(number)[0].get_attribute('src')
            if control.tag_name == 'select':
                chosen = Select(control)
                chosen.select_by_index((chosen.options.index(chosen.first_selected_option) + 1) % len(chosen.options))
            else:
                at_the_end = control.get_attribute('aria-valuenow') == control.get_attribute('aria-valuemax')
                control.send_keys(Keys.ARROW_LEFT if at_the_end else Keys.ARROW_RIGHT)
            until(lambda before=before, number=number: ran.pictures(number)[0].get_attribute('src') != before,
                  f'the next picture of control {count} in cell {number}')
            assert 'Error' not in ran.output(number)
        ran.shoot(f'panel_{number}_moved')
    assert ran.complaints() == []
