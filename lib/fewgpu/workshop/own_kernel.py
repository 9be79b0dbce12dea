"""The one kernel of a JupyterLab that `./workshop.py lab` starts. Imported by JupyterLab's server, by its name."""

from jupyter_client.kernelspec import KernelSpecManager
from traitlets import List


class OwnKernel(KernelSpecManager):
    """Looks for kernels in no folder, so that 'python3' is the Python that runs the server, and nothing else is there.

    Elsewhere a 'python3' that someone has registered for another environment would come first, and a
    lesson would run without fewgpu.
    """

    kernel_dirs: List = List([])
