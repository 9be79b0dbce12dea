"""`./workshop.py report`: your results as one page and as JSON, and, if you wish, shared with your teacher."""

import contextlib
import json
from pathlib import Path
from typing import Annotated

import typer

from fewgpu.workshop import repository
from fewgpu.workshop.runner.choose import every
from fewgpu.workshop.runner.learner import Learner, learner
from fewgpu.workshop.runner.progress import Progress
from fewgpu.workshop.runner.report_page import report_page
from fewgpu.workshop.runner.results import Results, collect
from fewgpu.workshop.runner.whole import write


def report(
    out: Annotated[Path | None, typer.Option(
        metavar='FILE', help='The page; the JSON is beside it. (Default: results/report.html.)')] = None,
    share: Annotated[Path | None, typer.Option(
        metavar='FOLDER', help='Also put your results there, for `./workshop.py class FOLDER`.')] = None,
    name: Annotated[str | None, typer.Option(
        help='What you are called in it, from now on. (Default: your user name.)')] = None,
) -> None:
    """Write your results as one page, which needs nothing but itself, and as JSON.

    Nothing leaves this machine unless you say --share: then your name, points, attempts, hints and times, and what is
    wrong with your last attempts, with the lines at fault, are written to that folder, where others can read them.
    """
    if out and out.suffix == '.json':
        raise typer.BadParameter(f'--out is the page, and its JSON is beside it: call it {out.with_suffix(".html")}')
    every()   # where there is no clone, that says so
    root = repository()
    progress = Progress.load(root)
    try:
        who = learner(root, name)
        results = collect(root, who.name, who.id, progress)
        page = out or root / 'results' / 'report.html'
        page.parent.mkdir(parents=True, exist_ok=True)
        data = page.with_suffix('.json')
        write(page, report_page(results))
        write(data, as_text(results))
        shared = share_in(share, who, results) if share else None
    except (ValueError, NotADirectoryError) as error:
        raise typer.BadParameter(str(error)) from error
    except OSError as error:
        where = f' ({error.filename})' if error.filename else ''
        raise typer.BadParameter(f'cannot write: {error.strerror or error}{where}') from error
    if progress.note:
        print(progress.note)
    print(f'{results.name}: {results.done} of {len(results.rows)} exercises solved, {results.earned} points.')
    print(f'The page is {page}\nThe data are {data}')
    if shared:
        print(f'Shared as {shared}\nThe same command again brings it up to date; deleting the file takes it back.')


def share_in(folder: Path, who: Learner, results: Results) -> Path:
    """Put the results of a learner into a folder of a class, in place of those that are there. Returns the file.

    Raises NotADirectoryError if there is no such folder: a new one, where nobody looks, would help nobody.
    """
    if not folder.is_dir():
        raise NotADirectoryError(f'there is no folder {folder}: ask your teacher what it is called')
    file = folder / who.file_name
    write(file, as_text(results.shared()), mode=0o644)   # others read it, whatever the usual rights are
    for other in folder.glob(f'*-{who.id}.json'):   # of the same learner, under an earlier name
        if other.name != file.name:
            with contextlib.suppress(OSError):
                other.unlink()
    return file


def as_text(results: Results) -> str:
    return json.dumps(results.to_json(), indent=1) + '\n'
