"""Who works in this clone: a name to show, and an id that tells two people of the same name apart.

The id is random: user names and paths are the same for everybody on many a JupyterHub and in computer rooms.
"""

import getpass
import json
import os
import re
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path

from fewgpu.workshop.runner.results import clean
from fewgpu.workshop.runner.whole import write

ID = re.compile(r'[0-9a-f]{8}')
LONGEST = 60   # characters of a name


@dataclass(frozen=True)
class Learner:
    name: str
    id: str

    @property
    def file_name(self) -> str:
        """What the shared results of this learner are called: one file a learner."""
        slug = re.sub(r'[^\w-]+', '-', self.name.lower()).strip('-_')[:40]
        return f'{slug or "learner"}-{self.id}.json'


def learner(root: Path, name: str | None = None) -> Learner:
    """Of the clone at `root`. A name that is given is remembered there; without any it is the user's.

    Raises ValueError for a name without a letter or digit, and OSError if it cannot be remembered.
    """
    file = root / 'exercises' / '.learner.json'
    known = _read(file)
    name = ' '.join(clean(name).split())[:LONGEST] if name is not None else known.get('name') or _user()
    if not re.search(r'\w', name):
        raise ValueError(f'{name!r} is no name: give one with at least one letter')
    who = Learner(name, known.get('id') or secrets.token_hex(4))
    if asdict(who) != known:
        write(file, json.dumps(asdict(who)) + '\n')
    return who


def _read(file: Path) -> dict[str, str]:
    """What is remembered; empty if there is nothing that can be used."""
    try:
        data = json.loads(file.read_text(encoding='utf-8'))
        if isinstance(data['name'], str) and ID.fullmatch(data['id']):
            return {'name': clean(data['name']), 'id': data['id']}
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        pass
    return {}


def _user() -> str:
    try:
        return clean(getpass.getuser())
    except (OSError, KeyError, ImportError):   # the user of a container may have no name
        return os.environ.get('USERNAME', 'learner')
