"""Whatever comes from another process, it is decoded to plain values or refused: nothing of it runs, nothing hangs."""

import ast
import hashlib
import json
import os
import pickle
import resource
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from fewgpu import launch
from fewgpu.checkpoint_files import read_parts, write_manifest, write_part
from fewgpu.meeting import PeerError, come_together
from fewgpu.own_files import NotOurs, read_own, write_own
from fewgpu.plain_data import verify_plain
from fewgpu.schedule import activation
from fewgpu.transport.ranks import Ranks
from fewgpu.transport.rank_mailbox import RankFailed
from fewgpu.transport.signs import Sign, read_sign
from fewgpu.transport.wire import HEAD, MOST_DEEP, MOST_STRUCTURE, Garbled, decode, encode
from tests.test_wire import VALUES

ROOT = Path(__file__).resolve().parents[1]
START = struct.Struct('<IqiiiiiB')
PLAIN = (torch.Tensor, type(None), bool, int, float, complex, str, tuple, list, dict)


class Bomb:
    """Touches a file where it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple:
        return os.system, (f'touch {self.file}',)


def decoded(head: bytes, parts: bytes = b'') -> Any:
    """What `decode` says to a head and to parts of which the sender chose every byte; None if it refuses them."""
    asked = []

    def receive(tensors: list[torch.Tensor]) -> None:
        for tensor in tensors:   # as gloo does: only what really comes is written, and takes memory
            asked.append(tensor.nbytes)
            coming = (parts * (2**16 // len(parts) + 1))[:min(tensor.nbytes, 2**16)] if parts else b''
            if coming:
                tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)[:len(coming)] = torch.frombuffer(
                    bytearray(coming), dtype=torch.uint8)
    try:
        return decode(torch.frombuffer(bytearray(head), dtype=torch.uint8), receive)
    except Garbled as error:
        assert len(str(error)) < 500 and '\n' not in str(error)


def verify_plain_value(value: Any) -> None:
    assert type(value) in PLAIN
    for part in value.items() if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else ():
        for each in part if isinstance(value, dict) else (part,):
            verify_plain_value(each)


def framed(structure: bytes, what: bytes = b'', length: int | None = None) -> bytes:
    return (START.pack(len(what + structure) if length is None else length, 1, 0, 0, 0, 0, 0, len(what)) + what + structure
            ).ljust(HEAD, b'\0')[:HEAD]


@settings(max_examples=300)
@given(st.binary(max_size=400), st.binary(max_size=300))
def test_random_bytes_are_a_value_or_refused(head: bytes, parts: bytes) -> None:
    for frame in (head.ljust(HEAD, b'\0'), framed(head), framed(b'l\3\0\0\0' + head), framed(head, length=HEAD * 2)):
        if found := decoded(frame, parts):
            verify_plain_value(found[2])


@settings(max_examples=150)
@given(value=VALUES, data=st.data())
def test_altered_and_shortened_messages_are_a_value_or_refused(value: Any, data: st.DataObject) -> None:
    head, *parts = (tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b''
                    for tensor in (each.resolve_conj() for each in encode(1, activation(1, 0), value)))
    used = bytearray(head)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, min(len(head), 300) - 1))
        used[place] = data.draw(st.integers(0, 255))
    if found := decoded(bytes(used), b''.join(parts)):
        verify_plain_value(found[2])
    if found := decoded(head[:data.draw(st.integers(1, 300))].ljust(HEAD, b'\xff'), b''.join(parts)):
        verify_plain_value(found[2])


def tensor(code: int, *shape: int, flags: int = 0, order: bytes = b'') -> bytes:
    return b'x' + struct.pack('<BBB', code, len(shape), flags) + struct.pack(f'<{len(shape)}q', *shape) + order


@pytest.mark.parametrize('frame', [
    framed(b'n', length=2**32 - 1),
    framed(b'n', length=MOST_STRUCTURE + 1),
    framed(b'n', b'F', length=0),
    framed(b's' + struct.pack('<I', 2**32 - 1)),
    framed(b'l' + struct.pack('<I', 2**32 - 1) + b'n'),
    framed(b'd' + struct.pack('<I', 2) + b'n' * 3),
    framed(b'l\1\0\0\0' * (MOST_DEEP + 2) + b'n'),
    framed(b'l\1\0\0\0' * 1600),
    framed(b'I' * 3000),
    framed(b'Is\2\0\0\0zz'), framed(b'In'),
    framed(b'z'), framed(b''), framed(b'nn'), framed(b's\2\0\0\0\xff\xfe'),
    framed(b'd\1\0\0\0l\0\0\0\0n'),   # a list is no key
    framed(tensor(255, 2)), framed(tensor(0, -1)), framed(tensor(0, 2**62, 2**62)), framed(tensor(0, 2**62, 0)),
    framed(tensor(0, *[2**20] * 64)), framed(tensor(0, 2, 2, flags=2, order=b'\0\0')),
    framed(tensor(0, 2, 2, flags=2, order=b'\0\7')), framed(tensor(0, 2, flags=255)),
    framed(b'x' + struct.pack('<BBB', 0, 65, 0)),
], ids=lambda frame: frame[START.size:START.size + 12].hex())
def test_wrong_lengths_depths_dtypes_and_shapes_are_refused(frame: bytes) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert decoded(frame, b'n') is None
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024   # KiB


def test_gradients_of_whole_numbers_are_refused() -> None:
    integers = encode(1, activation(1, 0), torch.ones(2, dtype=torch.int64))[0].clone()
    at = bytes(integers.numpy()).index(b'x')
    integers[at + 3] = 1
    assert decoded(integers.numpy().tobytes()) is None


def test_what_holds_itself_is_refused_by_its_sender() -> None:
    circle: list = []
    circle.append(circle)
    with pytest.raises(TypeError, match='does one hold itself'):
        encode(1, activation(1, 0), circle)
    with pytest.raises(TypeError, match='does it hold itself'):
        verify_plain({'model': circle}, 'the state')


def test_pickles_are_not_run(tmp_path: Path) -> None:
    bomb = pickle.dumps(Bomb(tmp_path / 'gone-wrong'))
    for frame in (bomb.ljust(HEAD, b'\0'), framed(bomb), framed(b's' + struct.pack('<I', len(bomb)) + bomb)):
        decoded(frame, bomb)
    read_sign(bomb)
    assert not (tmp_path / 'gone-wrong').exists()


SIGN = Sign(3, 'is at F3', activation(1, 0), 7)
JUNK = st.recursive(st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
                    lambda inner: st.one_of(st.lists(inner, max_size=5), st.dictionaries(
                        st.sampled_from([*Sign._fields, 'x']), inner, max_size=5)), max_leaves=10)


@settings(max_examples=200)
@given(st.one_of(st.binary(max_size=100), JUNK.map(lambda data: json.dumps(data).encode()), st.fixed_dictionaries(
    {name: JUNK for name in Sign._fields}).map(lambda data: json.dumps(data).encode())))
def test_a_sign_that_no_rank_left_is_none_of_life(text: bytes) -> None:
    sign = read_sign(text)
    assert isinstance(sign.step, int) and isinstance(sign.doing, str) and isinstance(sign.beat, int) and str(sign)


def test_a_sign_is_read_as_it_was_left_and_a_deep_or_endless_one_is_not() -> None:
    assert read_sign(json.dumps(SIGN._asdict()).encode()) == SIGN
    for text in (b'[' * 10**6, b'{"step": ' + b'1' * 10**6 + b'}'):
        assert read_sign(text).doing == 'left a sign that cannot be read'


@given(st.one_of(st.binary(min_size=1, max_size=60), st.sampled_from(
    [b'1/60', b'a/b/c', b'1/60/1, x', b'/' * 5000, b'9' * 5000 + b'/1/1', b'1//2'])))
def test_an_end_of_a_meeting_that_no_rank_wrote_is_an_error_of_the_meeting(end: bytes) -> None:
    if end == b'all':
        return
    store = dist.HashStore()
    store.set('fewgpu/0,1/1/end', end)
    with pytest.raises(PeerError) as caught:
        come_together(store, 0, [0, 1], 'meet', 5.0)
    assert len(str(caught.value)) < 500


def talks_nonsense() -> str:
    """Rank 1 sends bytes in place of a message; rank 0 says what it makes of it."""
    ranks = Ranks(time_limit=30.0)
    if dist.get_rank() == 1:
        peer = ranks.peers[0]
        peer._group.send([torch.full((HEAD,), 255, dtype=torch.uint8)], peer._place, 0).wait()
    try:
        ranks.tell(1 - dist.get_rank(), None)
        ranks.tell(dist.get_rank(), None)
        return 'heard nothing'
    except RankFailed as error:
        return str(error)


@pytest.mark.slow
def test_a_rank_that_talks_nonsense_is_named_and_all_stop() -> None:
    for said in launch(talks_nonsense, 2, time_limit=120):
        assert 'the connection to rank 1 broke (what came is no message of the kit' in said


# The files that the processes of `launch` leave for each other


@pytest.mark.skipif(os.name != 'posix', reason='owners and modes are those of Unix')
def test_files_that_somebody_else_may_have_written_are_not_read(tmp_path: Path) -> None:
    folder = tmp_path / 'private'
    folder.mkdir(mode=0o700)
    write_own(folder / 'call', b'ours')
    assert read_own(folder / 'call') == b'ours' and (folder / 'call').stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        write_own(folder / 'call', b'again')
    (folder / 'link').symlink_to(folder / 'call')
    os.mkfifo(folder / 'pipe', 0o600)
    (folder / 'open').write_bytes(b'anybody')
    (folder / 'open').chmod(0o666)
    for name in ('link', 'pipe', 'open'):
        with pytest.raises((NotOurs, OSError)):
            read_own(folder / name)
    (tmp_path / 'linked').symlink_to(folder)
    with pytest.raises(NotOurs, match='is a link'):
        read_own(tmp_path / 'linked' / 'call')
    for mode in (0o755, 0o777, 0o770, 0o701):
        folder.chmod(mode)
        with pytest.raises(NotOurs, match='is not of this user alone'):
            read_own(folder / 'call')


@pytest.mark.slow
@pytest.mark.skipif(os.name != 'posix', reason='owners and modes are those of Unix')
def test_a_rank_runs_nothing_from_a_folder_that_others_may_write_to(tmp_path: Path) -> None:
    with pytest.raises(PermissionError, match='is not of this user alone'):
        launch(opens_its_folder, 1, time_limit=120)


def opens_its_folder() -> None:
    Path(sys.argv[1]).chmod(0o777)   # what it leaves now is not read


# Checkpoints whose digests somebody has computed anew


@pytest.mark.parametrize('name', ['../secret.pt', '/etc/passwd', 'rank-1.pt', 'manifest.json'])
def test_a_manifest_names_the_files_of_ranks_and_no_others(name: str, tmp_path: Path, monkeypatch) -> None:
    write_part(tmp_path / 'rank-0.pt', {'model': {}})
    monkeypatch.setattr('fewgpu.checkpoint_files.part_of', lambda rank: name)
    write_manifest(tmp_path, 1, ['0' * 64])
    monkeypatch.undo()
    with pytest.raises(ValueError, match='is not as it was written'):
        read_parts(tmp_path, 1)


@settings(max_examples=60)
@given(data=st.data())
def test_a_part_with_a_digest_to_match_is_plain_data_or_refused(data: st.DataObject, tmp_path_factory) -> None:
    folder = tmp_path_factory.mktemp('forged')
    file, gone_wrong = folder / 'rank-0.pt', folder / 'gone-wrong'
    kind = data.draw(st.sampled_from(['altered', 'bytes', 'bomb', 'old bomb', 'no dict']))
    if kind == 'altered':
        write_part(file, {'model': {'w': torch.ones(3)}})
        content = bytearray(file.read_bytes())
        for _ in range(data.draw(st.integers(1, 8))):
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
        file.write_bytes(content)
    elif kind == 'bytes':
        file.write_bytes(data.draw(st.binary(max_size=200)))
    elif kind == 'bomb':
        torch.save({'model': Bomb(gone_wrong)}, file)
    elif kind == 'old bomb':
        file.write_bytes(pickle.dumps(Bomb(gone_wrong), protocol=2))
    else:
        torch.save([1, 2], file)
    write_manifest(folder, 1, [hashlib.sha256(file.read_bytes()).hexdigest()])
    try:
        assert all(isinstance(part, dict) for part in read_parts(folder, 1)) and kind == 'altered'
    except ValueError as error:
        assert 'rank-0.pt' in str(error)
    assert not gone_wrong.exists()


# Our sources


UNPICKLES = {   # who may, and of what
    'fewgpu/launch.py': 'results and errors, from the private folder of its own ranks',
    'fewgpu/launched.py': 'the call, from the private folder of the process that launched it',
}
NAMES_PICKLE = {'fewgpu/checkpoint_files.py'}   # for its exception
RUNS = {'fewgpu/workshop/graders/plays.py': 'the code of layers that stands in the same file'}
OF_OBJECTS = {'all_gather_object', 'gather_object', 'broadcast_object_list', 'scatter_object_list', 'send_object_list',
              'recv_object_list'}   # torch.distributed pickles them
LOADERS = {'pickle', 'cloudpickle', 'dill', 'marshal', 'shelve', 'joblib', 'yaml', '_pickle', 'cPickle'}


def calls(tree: ast.AST) -> list[tuple[str, ast.Call]]:
    """Of a file: the dotted name of what is called, and the call."""
    return [(ast.unparse(node.func), node) for node in ast.walk(tree) if isinstance(node, ast.Call)]


def each_source(test: Callable[[str, ast.AST], Any]) -> list[str]:
    found = []
    for file in sorted([*(ROOT / 'lib').rglob('*.py'), *(ROOT / 'jobs').rglob('*.py')]):
        name = file.relative_to(ROOT / 'lib' if file.is_relative_to(ROOT / 'lib') else ROOT).as_posix()
        if test(name, ast.parse(file.read_text(encoding='utf-8'))):
            found.append(name)
    return found


def test_only_launch_unpickles_and_only_files_of_its_private_folder() -> None:
    def unpickles(name: str, tree: ast.AST) -> bool:
        imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        imported |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
        reads = [called for called, _ in calls(tree) if called.rpartition('.')[2] in ('load', 'loads', 'Unpickler')
                 and called.partition('.')[0] in LOADERS]
        assert name in {*UNPICKLES, *NAMES_PICKLE} or not imported & LOADERS, f'{name} imports {imported & LOADERS}'
        assert name not in NAMES_PICKLE or not reads
        return bool(reads)
    assert set(each_source(unpickles)) == {*UNPICKLES}
    for name in UNPICKLES:
        for called, call in calls(ast.parse((ROOT / 'lib' / name).read_text())):
            if called == 'pickle.loads' and not ast.unparse(call.args[0]).startswith('read_own('):
                assert ast.unparse(call.args[0]) == 'pickled' and name == 'fewgpu/launched.py'   # what it just wrote


def test_torch_loads_weights_only_and_no_object_travels_by_pickle() -> None:
    def is_wrong(name: str, tree: ast.AST) -> bool:
        for called, call in calls(tree):
            if called == 'torch.load':
                assert {word.arg: ast.unparse(word.value) for word in call.keywords}.get('weights_only') == 'True', name
            assert called.rpartition('.')[2] not in OF_OBJECTS, f'{name} calls {called}'
            assert 'allow_pickle' not in [word.arg for word in call.keywords], name
        return False
    each_source(is_wrong)


def test_no_text_is_run() -> None:
    assert set(each_source(lambda name, tree: any(called in ('eval', 'exec', 'compile', 'builtins.eval', 'builtins.exec')
                                                  for called, _ in calls(tree)))) == {*RUNS}
