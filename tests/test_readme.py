"""What the README shows in Python runs as it stands there, from the first block to the last."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def blocks() -> list[str]:
    """The indented blocks that are Python, and not commands of a shell."""
    text = (ROOT / 'README.md').read_text(encoding='utf-8')
    found = re.findall(r'(?:^ {4}.*\n|^\n(?= {4}))+', text, flags=re.MULTILINE)
    dedented = [re.sub(r'^ {4}', '', block, flags=re.MULTILINE).strip() for block in found]
    return [block for block in dedented if block.startswith(('from ', 'import '))]


def test_there_are_blocks_of_python_and_they_parse() -> None:
    assert len(blocks()) >= 4
    for block in blocks():
        ast.parse(block)


@pytest.mark.slow
def test_they_run_one_after_the_other_and_the_ranks_find_what_the_threads_found(tmp_path: Path) -> None:
    script = tmp_path / 'readme.py'
    script.write_text('\n\n'.join(blocks()).replace('losses = train()', """import copy
before = copy.deepcopy(model.state_dict())
threads = train()
model.load_state_dict(before)
""") + """

assert len(threads) == 10 and len(losses) == 2
assert all(torch.equal(loss, same) for loss, same in zip(losses[-1], threads, strict=True))
""")
    done = subprocess.run([sys.executable, script.name], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
