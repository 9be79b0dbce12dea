"""One system in a process of its own: `python -m fewgpu.workshop.systems.contest KEY WORK REPORT`, files of JSON."""

import json
import sys
from dataclasses import asdict
from pathlib import Path

from fewgpu.workshop.systems.sweeps import SWEEPS
from fewgpu.workshop.systems.trainers import SYSTEMS
from fewgpu.workshop.systems.work import Work


def main(key: str, work: str, report: str) -> None:
    """Train by one system (or run one sweep over several sizes), and write what came of it."""
    given = json.loads(Path(work).read_text(encoding='utf-8'))
    todo = Work(**{**given, 'balance': tuple(given['balance'])})
    if key in SWEEPS:
        found = SWEEPS[key][1](todo)
    else:
        outcome = SYSTEMS[key][1](todo)
        outcome.state.clear()   # a report says what was measured; weights are no part of it
        found = asdict(outcome)
    Path(report).write_text(json.dumps(found), encoding='utf-8')


if __name__ == '__main__':
    main(*sys.argv[1:])
