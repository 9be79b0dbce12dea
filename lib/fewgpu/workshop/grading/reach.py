"""What a learner's file may not reach: the frames and objects of the grader, the kit's files, and the finished answers.

Python tells audit hooks (PEP 578) of what happens, and no Python code can take a hook away. Ours looks who does it:
what the kit, torch and Python's own modules do for themselves is theirs. This keeps out what reaches over the fence by
Python's means. It is no prison: the file runs under the learner's account, as code in C may do anything there.
"""

import os
import sys
import sysconfig
import threading
from pathlib import Path, PosixPath, WindowsPath
from types import FrameType

import fewgpu
from fewgpu.workshop.grading.forbid import HandedBack, IsLearners, StartsProcess, is_behind, serves

_FRAMES = frozenset({'sys._getframe', 'sys._current_frames', 'sys._current_exceptions'})
_FRAME_OF = frozenset({'tb_frame', 'gi_frame', 'cr_frame', 'ag_frame'})
_OBJECTS = frozenset({'gc.get_objects', 'gc.get_referrers', 'gc.get_referents', 'sys.addaudithook', 'sys.settrace',
                      'sys.setprofile', 'sys.monitoring.register_callback', 'ctypes.cdata', 'ctypes.dlsym/handle',
                      'ctypes.set_exception'})
_WALKS = 'walk_tb', 'walk_stack'
_PARTS = frozenset({'__code__', '__defaults__', '__kwdefaults__'})
_TWO_PATHS = frozenset({'os.rename', 'os.link', 'os.symlink'})
_PATHS = _TWO_PATHS | {'open', 'os.remove', 'os.rmdir', 'os.truncate', 'os.chmod', 'os.mkdir', 'os.utime', 'os.chown',
                       'os.setxattr', 'sqlite3.connect'}
_FORKS = frozenset({'fork', 'vfork', 'clone', 'posix_spawn', 'posix_spawnp', 'system', 'popen', 'execve', 'execv',
                    'syscall'})
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_KIT = Path(fewgpu.__file__).resolve().parents[2]
_ANSWERS = ('solutions', 'tests/bank', 'lib/fewgpu/workshop/graders')


class Tampers(BaseException):
    """The learner's file reaches for what is not its own. (No Exception: `except Exception` does not hide it.)"""


def keep_apart(file: Path, folder: Path, is_learners: IsLearners) -> list[str]:
    """From now on in this process, the learner's `file` meets Tampers, HandedBack or StartsProcess there.

    `folder` is the grader's own. The list gets what it has tried: it may have caught the exception.
    """
    tried: list[str] = []
    own, kit, folder, prefix = str(file), f'{_KIT}{os.sep}', f'{folder}{os.sep}', f'{sys.prefix}{os.sep}'
    beside, answers = f'{file.parent}{os.sep}', tuple(str(_KIT / name) + os.sep for name in _ANSWERS)
    real, text, ident, main, inside = os.path.realpath, os.fsdecode, threading.get_ident, threading.get_ident(), set()
    others = kit, prefix, sysconfig.get_path('stdlib') + os.sep
    watched = _PATHS | _FRAMES | _OBJECTS | {'object.__getattr__', 'object.__setattr__', 'ctypes.dlsym'}

    def refuse(what: str) -> None:
        tried.append(what)
        raise Tampers(what)

    def is_protected(path: str) -> bool:
        if path.startswith(beside):
            name = path[len(beside):]
            return path != own and (name.endswith('.py') or name.startswith(('progress', '.progress', '.learner')))
        return path.startswith((kit, folder, prefix))

    def hook(event: str, arguments: tuple) -> None:
        if event in watched and (thread := ident()) not in inside:
            inside.add(thread)   # what we do here are events, too
            try:
                judge(event, arguments, sys._getframe(1))
            finally:
                inside.discard(thread)

    def judge(event: str, arguments: tuple, frame: FrameType) -> None:
        if event in _PATHS:
            writes = event != 'open' or is_writing(*arguments[1:])
            for path in arguments[:2] if event in _TWO_PATHS else arguments[:1]:
                if type(path) in (str, bytes, PosixPath, WindowsPath):
                    look(real(text(path)), writes, frame)
        elif event in _FRAMES or event == 'object.__getattr__' and arguments[1] in _FRAME_OF:
            if takes_frame(frame, is_learners):
                refuse(f'{event if event in _FRAMES else arguments[1]} shows what the grader is doing')
        elif event in _OBJECTS:
            if serves(frame, is_learners):
                refuse(f'{event} reaches the objects of others')
        elif event == 'ctypes.dlsym' and serves(frame, is_learners):
            if arguments[1] in _FORKS:
                raise StartsProcess(f'{arguments[1]} by ctypes')
            refuse(f'ctypes calls {arguments[1]!r}')
        elif event == 'object.__setattr__' and arguments[1] in _PARTS:
            if serves(frame, is_learners) and arguments[0].__code__.co_filename.startswith(others):
                refuse(f'{arguments[1]} of another function is exchanged')

    def look(path: str, writes: bool, frame: FrameType) -> None:
        is_answer = not writes and path.startswith(answers) and path != own
        if (is_answer or writes and is_protected(path)) and (ident() != main or is_behind(frame, is_learners)):
            if writes:
                refuse(f'{path.removeprefix(kit)} is not for the file to change')
            if not is_for_traceback(frame):
                raise HandedBack(path.removeprefix(kit))

    sys.addaudithook(hook)
    return tried


def is_writing(mode: str | None, flags: int) -> bool:
    return bool(flags & _WRITES) if mode is None else any(letter in mode for letter in 'wax+')


def takes_frame(frame: FrameType | None, is_learners: IsLearners) -> bool:
    """Would the learner's file get what is asked for by this frame?"""
    while frame is not None:
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        if not (file.endswith(('inspect.py', 'bdb.py', 'pdb.py')) or file.endswith('traceback.py') and name in _WALKS):
            return is_learners(file) or file == '<string>'
        frame = frame.f_back
    return False


def is_for_traceback(frame: FrameType | None) -> bool:
    """Is a line wanted, to be shown?"""
    while frame is not None:
        if frame.f_code.co_filename.endswith('linecache.py'):
            return True
        frame = frame.f_back
    return False
