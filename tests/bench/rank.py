"""One process of torch.distributed.pipelining: `python -m tests.bench.rank FOLDER RANK WORLD_SIZE`.

Commands come as JSON lines on standard input, replies go as JSON lines to standard output. When the
input ends, because the benchmark closed it or died, the process ends, whatever it is doing.
"""

import json
import os
import queue
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import TextIO


def main(folder: Path, rank: int, world_size: int) -> None:
    """Carry out commands until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)   # Ctrl-C is the benchmark's business
    commands: queue.SimpleQueue[dict] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(commands,), daemon=True).start()
    replies = os.fdopen(os.dup(1), 'w', buffering=1)
    os.dup2(2, 1)   # what libraries print is no reply
    try:
        _obey(commands, replies, folder, rank, world_size)
    except BaseException:
        traceback.print_exc()
    os._exit(1)   # neither the listening thread nor gloo's may hold it up


def _obey(commands: queue.SimpleQueue, replies: TextIO, folder: Path, rank: int,
          world_size: int) -> None:
    from tests.bench.peer import Peer   # seconds of imports, and already one can be told to end
    peer = Peer(folder, rank, world_size)
    left = time.process_time()
    while True:
        command = commands.get()   # blocked here while others are measured
        idle = time.process_time() - left
        reply = getattr(peer, command.pop('do'))(**command)
        left = time.process_time()
        replies.write(json.dumps({**reply, 'idle_cpu_seconds': idle}) + '\n')


def _listen(commands: queue.SimpleQueue) -> None:
    for line in sys.stdin:
        commands.put(json.loads(line))
    os._exit(0)


if __name__ == '__main__':
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
