"""The command line: `python -m fewgpu.workshop --help`.

Only the module of the command that was asked for is imported, so that `--help` needs no torch and answers at once.
"""

import sys
from collections.abc import Callable, Sequence
from importlib import import_module

import typer

# command: (its module in this package, the function there, what --help says about it)
COMMANDS = {
    'compare': ('compare', 'compare', 'Train ResNet-50 on MNIST plainly and as pipelines, and show them side by side.'),
    'draw': ('draw', 'draw', 'Show a pipeline schedule: in the terminal, as a picture and as a page.'),
    'run': ('run', 'run', "Run a script with the kit's own Python."),
    'lab': ('lab', 'lab', 'Start JupyterLab on the lessons.'),
    'kernel': ('lab', 'kernel', 'Register the kit as a kernel of a JupyterLab or JupyterHub that is there already.'),
    'test': ('tests', 'test', "Run the kit's own tests."),
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
    for name, (module, function, summary) in COMMANDS.items():
        reads = {'ignore_unknown_options': True, 'allow_interspersed_args': False} if name in PASS_ON else {}
        command = _load(module, function) if name == asked_for else _unused
        app.command(name, short_help=summary, context_settings=reads)(command)
    return app


def _load(module: str, function: str) -> Callable[..., None]:
    return getattr(import_module(f'fewgpu.workshop.{module}'), function)


def _unused() -> None:
    """Stands in for a command that was not asked for."""


def main() -> None:
    """Run the command that the command line names."""
    build(sys.argv[1:])(prog_name='workshop.py')


if __name__ == '__main__':
    main()
