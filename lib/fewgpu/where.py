"""Which line of the learner's own an error comes from, behind all those of libraries."""

import os
import sysconfig
import traceback

import torch


def learners_line(error: BaseException) -> str:
    """The end of a note: ', at file:line: code'; empty if no line is the learner's."""
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_LIBRARIES)]
    return f', at {own[-1].filename}:{own[-1].lineno}: {own[-1].line}' if own else ''


_LIBRARIES = (*(os.path.join(folder, '') for folder in (
    *(os.path.dirname(file) for file in (torch.__file__, __file__)),
    *(sysconfig.get_path(name) for name in ('stdlib', 'platstdlib', 'purelib', 'platlib')))),
    '<frozen ')
