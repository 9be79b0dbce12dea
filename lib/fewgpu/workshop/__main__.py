"""The command line: `python -m fewgpu.workshop --help`.

Only the module of the command that was asked for is imported, so that `--help` needs no torch and answers at once.
"""

import errno
import os
import signal
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

_on_interrupt = signal.getsignal(signal.SIGINT)
if __name__ == '__main__' and _on_interrupt is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)   # Ctrl-C while modules are loaded ends us, without ado

import typer  # noqa: E402

# panel of --help: {command: (its module in this package, the function there, what --help says about it)}
PANELS = {
    'Exercises': {
        'list': ('runner.list', 'list_exercises', 'The exercises: what is done, and what comes next.'),
        'check': ('runner.check', 'check', 'Is an exercise right, and if not, what is the misunderstanding?'),
        'watch': ('runner.watch', 'watch', 'Check an exercise whenever its file is saved.'),
        'hint': ('runner.hint', 'hint', 'A hint, in four steps.'),
        'solution': ('runner.solution', 'solution', 'Show the solution of an exercise that you have solved.'),
        'reset': ('runner.reset', 'reset', 'Start an exercise anew; a copy of your file is kept.'),
        'report': ('runner.report', 'report', 'Write your results as one page, and as JSON.'),
    },
    'Training': {
        'run': ('run', 'run', "Run a script with the kit's own Python."),
        'compare': ('compare', 'compare', 'Train ResNet-50 on MNIST plainly and as pipelines, side by side.'),
        'sweep': ('sweep', 'sweep', 'The table and the picture of a sweep (jobs/job_sweep.sh), again.'),
        'demo': ('demo', 'demo', 'One system of the lectures, its claim put to the test.'),
        'plan': ('plan', 'plan', 'Which way to train a model on a cluster: predicted speed and memory.'),
        'draw': ('draw', 'draw', 'Show a schedule: in the terminal, as a picture, as a page.'),
    },
    'Where it runs': {
        'doctor': ('runner.doctor', 'doctor', 'Is this machine ready?'),
        'lab': ('lab', 'lab', 'Start JupyterLab on the lessons.'),
        'kernel': ('lab', 'kernel', 'Register the kit with a JupyterLab or JupyterHub.'),
    },
    'For teachers and maintainers': {
        'class': ('runner.classroom', 'classroom', 'Who is where, and stuck on what.'),
        'selfcheck': ('runner.selfcheck', 'selfcheck', 'Every exercise fails unsolved and passes solved.'),
        'strip': ('runner.strip', 'strip', 'Make the exercises from their solutions.'),
        'test': ('tests', 'test', "Run the kit's own tests."),
    },
}
PASS_ON = ('run', 'lab')  # their arguments are for what they start


def build(arguments: Sequence[str]) -> typer.Typer:
    """The app for this command line: the command that it names is real, the others only have their line of help."""
    app = typer.Typer(
        name='workshop.py',
        help='Train networks that do not fit, or are too slow, on the few GPUs you have.',
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={'help_option_names': ['-h', '--help']},
    )
    app.callback()(lambda: None)  # a command is always named, also while there is only one
    asked_for = next((argument for argument in arguments if not argument.startswith('-')), None)
    for panel, commands in PANELS.items():
        for name, (module, function, summary) in commands.items():
            reads = {'ignore_unknown_options': True, 'allow_interspersed_args': False} if name in PASS_ON else {}
            command = _load(module, function) if name == asked_for else _unused
            app.command(name, short_help=summary, context_settings=reads, rich_help_panel=panel)(command)
    return app


def _load(module: str, function: str) -> Callable[..., None]:
    return getattr(import_module(f'fewgpu.workshop.{module}'), function)


def _unused() -> None:
    """Stands in for a command that was not asked for."""


def main() -> None:
    """Run the command that the command line names."""
    if sys.stdout is None:   # it was closed by whoever started us
        sys.stdout = open(os.devnull, 'w')
    app = build(sys.argv[1:])
    signal.signal(signal.SIGINT, _on_interrupt)
    try:
        app(prog_name='workshop.py')
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        print(f'workshop.py: the disk is full: free some ({error})', file=sys.stderr)
        os._exit(1)   # Python would try to write once more what found no room


if __name__ == '__main__':
    main()
