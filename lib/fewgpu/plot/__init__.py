"""Pictures: timelines of a pipeline, bars that compare, and lines.

    from fewgpu import plot

    plot.timeline(model.timeline)                        # in a notebook the figure shows itself
    plot.timeline(model.timeline).savefig('step.svg')    # also .pdf, .png

Every function draws into `ax`, or into a new figure of its own, and returns the figure. None
touches pyplot or needs a display. Kinds of operations differ in colour, in lightness and in
hatching, so that they stay apart in grey print and for colour-blind readers.
"""

from fewgpu.plot.curves import memory_curves
from fewgpu.plot.exchanges import before_and_after, exchanges, overlaps
from fewgpu.plot.lengths import bars, memory_bars
from fewgpu.plot.lines import lines
from fewgpu.plot.looks import Picture
from fewgpu.plot.spans import timeline, timelines
from fewgpu.plot.tasks import Task, tasks

__all__ = ['Picture', 'Task', 'bars', 'before_and_after', 'exchanges', 'lines', 'memory_bars',
           'memory_curves', 'overlaps', 'tasks', 'timeline', 'timelines']
