"""A lesson in a real browser: JupyterLab on a copy of the clone, and Chromium, headless, to read it in.

Nothing is fetched from anywhere: Chromium and its driver are those of the machine, and no name is resolved.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from fewgpu.workshop.exercise import Exercise
from fewgpu.workshop.strip import strip

ROOT = Path(__file__).resolve().parents[1]
CHROMIUM = shutil.which('chromium') or shutil.which('chromium-browser') or shutil.which('google-chrome')
DRIVER = shutil.which('chromedriver')
TOKEN = 'abc'
KERNEL = 'fewgpu | Idle'   # what the line at the bottom says once the lesson's kernel is there
PATIENCE = 180   # seconds until something is held to be stuck; all waits end as soon as they can
LIKELY = (WebDriverException, OSError, LookupError, StopIteration, ValueError)   # while a page is built


def until(condition: Callable[[], Any], what: str, patience: float = PATIENCE) -> Any:
    """What `condition` returns once it is true. Raises TimeoutError, which says `what` did not come."""
    end, why = time.monotonic() + patience, None
    while time.monotonic() < end:
        try:
            if result := condition():
                return result
        except LIKELY as error:
            why = error
        time.sleep(0.2)
    raise TimeoutError(f'waited {patience} s in vain for {what}') from why


def copy_of_the_clone(to: Path, lesson: str) -> Path:
    """The lesson and the files that it uses, no exercise solved, nothing noted down."""
    (to / 'notebooks').mkdir(parents=True)
    for file in ('workshop.py', 'requirements.txt', 'pyproject.toml', f'notebooks/{lesson}'):
        shutil.copy(ROOT / file, to / file)
    for folder in ('lib', 'exercises', 'solutions'):
        shutil.copytree(ROOT / folder, to / folder, ignore=shutil.ignore_patterns(
            '__pycache__', '.*', 'progress*.json', '*.before-reset-*'))
    for solution in (to / 'solutions').glob('[0-9]*.py'):
        exercise = Exercise(int(solution.stem[:2]), solution.stem, to).file
        exercise.write_text(strip(solution.read_text(encoding='utf-8')), encoding='utf-8')
    return to


class Lab:
    """JupyterLab, started by `./workshop.py lab` in a copy of the clone, with a home of its own."""

    def __init__(self, folder: Path, lesson: str) -> None:
        self.clone = copy_of_the_clone(folder / 'clone', lesson)
        with socket.socket() as free:
            free.bind(('127.0.0.1', 0))
            self.port = free.getsockname()[1]
        self.address = f'http://127.0.0.1:{self.port}/lab?token={TOKEN}'
        environment = {name: value for name, value in os.environ.items() if not name.startswith('JUPYTER')}
        environment |= {'HOME': str(folder), 'IPYTHONDIR': str(folder / 'ipython'),
                        'PYTHONPATH': str(self.clone / 'lib'), 'PYTHONDONTWRITEBYTECODE': '1'}
        for name in ('runtime', 'data', 'config'):
            environment[f'JUPYTER_{name.upper()}_DIR'] = str(folder / name)
        options = ['--no-browser', f'--port={self.port}', '--ServerApp.port_retries=0',
                   f'--IdentityProvider.token={TOKEN}', *(['--allow-root'] if os.geteuid() == 0 else [])]
        self.log = folder / 'lab.log'
        with self.log.open('w') as log:
            self.process = subprocess.Popen(
                [sys.executable, '-P', '-m', 'fewgpu.workshop', 'lab', *options], cwd=self.clone,
                env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                start_new_session=True)

    def wait_until_it_answers(self) -> None:
        def answers() -> bool:
            assert self.process.poll() is None, self.log.read_text()
            with socket.create_connection(('127.0.0.1', self.port), timeout=10):
                return True

        until(answers, 'JupyterLab')

    def end(self) -> None:
        """End it, and with it every kernel."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()   # its kernels notice and end themselves
            self.process.wait()


class Page:
    """What a person sees of JupyterLab, and does there with mouse and keys. Screenshots go to `folder`."""

    def __init__(self, folder: Path) -> None:
        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM
        for option in ('headless=new', 'no-sandbox', 'disable-gpu', 'disable-dev-shm-usage', 'no-first-run',
                       'no-proxy-server', 'disable-background-networking', 'disable-component-update',
                       'window-size=1300,1000', f'user-data-dir={folder / "chromium"}',
                       'host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1'):
            options.add_argument(f'--{option}')
        options.set_capability('goog:loggingPrefs', {'browser': 'ALL'})
        environment = os.environ | {'HOME': str(folder), 'NO_PROXY': '127.0.0.1,localhost'}
        service = webdriver.ChromeService(DRIVER, env=environment)
        self.browser, self.folder = webdriver.Chrome(options, service), folder
        self.browser.set_page_load_timeout(PATIENCE)

    def all(self, selector: str, inside: WebElement | None = None) -> list[WebElement]:
        return (inside or self.browser).find_elements(By.CSS_SELECTOR, selector)

    def shoot(self, name: str) -> None:
        self.browser.save_screenshot(str(self.folder / f'{name}.png'))

    def open(self, address: str, lesson: str, cells: int) -> None:
        """Open JupyterLab, and by a double click in the list of files a lesson; wait for its kernel."""
        self.browser.get(address)

        def click() -> bool:
            item, = (item for item in self.all('.jp-DirListing-item') if item.text.startswith(lesson[:8]))
            ActionChains(self.browser).double_click(item).perform()
            return True

        until(click, f'{lesson} in the list of files')
        until(lambda: len(self.all('.jp-Notebook .jp-Cell')) == cells, 'all cells of the lesson')
        until(lambda: KERNEL in self.states(), KERNEL)

    def states(self) -> list[str]:
        """What the line at the bottom says."""
        return [item.text for item in self.all('.jp-StatusBar-TextItem')]

    def menu(self, *path: str) -> None:
        """Choose an entry of the menus, as in menu('Run', 'Run All Cells')."""
        for kind, name in zip(('MenuBar', *['Menu'] * len(path)), path, strict=False):
            def click(kind: str = kind, name: str = name) -> bool:
                entry = next(entry for entry in self.all(f'.lm-{kind}-itemLabel') if entry.text == name)
                entry.click()
                return True

            until(click, f'{name} in the menu')

    def cell(self, number: int) -> WebElement:
        """A cell, moved into view."""
        cell = self.all('.jp-Notebook .jp-Cell')[number]
        self.browser.execute_script('arguments[0].scrollIntoView({block: "start"})', cell)
        return cell

    def prompt(self, number: int) -> str:
        """What stands left of a code cell: [7]: if it has run, [*]: while it runs."""
        return self.all('.jp-InputPrompt', self.cell(number))[0].text

    def prompts(self) -> list[str]:
        """Of all code cells, in one look."""
        return self.browser.execute_script(
            "return [...document.querySelectorAll('.jp-CodeCell .jp-InputPrompt')].map(it => it.textContent)")

    def run_all(self) -> None:
        """Run all cells by the menu, and wait until none runs or waits."""
        self.menu('Run', 'Run All Cells')
        until(lambda: '[*]:' in self.prompts(), 'the cells to start')
        until(lambda: '[*]:' not in self.prompts(), 'the cells to end', 2 * PATIENCE)

    def run(self, number: int) -> None:
        """Click at a cell, run it by Ctrl-Enter, and wait until it has run."""
        before = self.prompt(number)
        self.all('.jp-InputPrompt', self.cell(number))[0].click()
        ActionChains(self.browser).key_down(Keys.CONTROL).send_keys(Keys.ENTER).key_up(Keys.CONTROL).perform()
        until(lambda: self.prompt(number) not in (before, '[*]:'), f'cell {number} to end')

    def output(self, number: int) -> str:
        """The text under a cell."""
        return '\n'.join(area.text for area in self.all('.jp-OutputArea-output', self.cell(number)))

    def pictures(self, number: int) -> list[WebElement]:
        """The pictures under a cell that are really there."""
        return [image for image in self.all('.jp-OutputArea-output img', self.cell(number))
                if image.get_property('complete') and image.get_property('naturalWidth')]

    def complaints(self) -> list[str]:
        """Dialogs, pop-ups, tracebacks and warnings of cells, and what the browser's console calls severe."""
        kinds = '.jp-Dialog', '.Toastify__toast', '[data-mime-type$=".error"]', '[data-mime-type$=".stderr"]'
        said = [f'{kind}: {thing.get_property("textContent")}' for kind in kinds for thing in self.all(kind)]
        return said + [f'console: {line["message"]}' for line in self.browser.get_log('browser')
                       if line['level'] == 'SEVERE']
