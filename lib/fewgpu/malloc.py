"""Keep freed memory in the process: glibc would give it back and fault it in again every step.

A pipeline on virtual devices allocates and frees the same activations in every step. With glibc's
defaults large blocks come from mmap and go back at once, which costs hundreds of thousands of page
faults; three settings keep them. They apply to every contestant of a benchmark or to none.
"""

import ctypes
import os
import sys

# From malloc.h; mallopt(3) tells what they do.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3


def keep_freed_memory() -> bool:
    """Set glibc's malloc to keep what is freed. True if it took effect.

    On Linux with glibc only; FEWGPU_MALLOC=0 in the environment leaves malloc as it is.
    """
    if not sys.platform.startswith('linux') or os.environ.get('FEWGPU_MALLOC') == '0':
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):   # another C library
        return False
    return all([mallopt(_M_TRIM_THRESHOLD, 2**31 - 1), mallopt(_M_MMAP_THRESHOLD, 2**30),
                mallopt(_M_TOP_PAD, 64 * 2**20)])
