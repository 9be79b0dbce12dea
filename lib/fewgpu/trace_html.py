"""A timeline as a page: zoom, hover over an operation, step through time. No server, no network."""

import json
from os import PathLike
from pathlib import Path
from typing import Any

from fewgpu.trace import Span, Timeline

PARTS = Path(__file__).with_name('trace_page')


def to_html(timeline: Timeline, path: str | PathLike[str] | None = None, *,
            title: str = 'Timeline', unit: str = '', counts: str = 'bytes') -> str:
    """The timeline as one self-contained HTML page, also written to `path` if one is given.

    Colours and hatching are those of `fewgpu.plot`. `unit` is what a second is called, where time
    is virtual; by default it is in s, ms or µs. `counts` is what was counted, if not bytes.
    """
    from fewgpu.plot.looks import IDLE, LOOKS, OTHER, time_unit

    name, factor = (unit, 1.0) if unit else time_unit(timeline.makespan)
    kinds = {span.op.kind for row in timeline.rows for span in row}
    looks = {kind: look._asdict() for kind, look in LOOKS.items() if kind in kinds}
    drawn = [*looks.values(), *[OTHER._asdict()] * bool(kinds - LOOKS.keys()), IDLE._asdict()]
    data = {
        'title': title, 'facts': _facts(timeline, name, factor), 'unit': name, 'factor': factor,
        'counts': counts, 'makespan': timeline.makespan, 'names': timeline.names, 'looks': looks,
        'other': OTHER._asdict(), 'legend': list({look['label']: look for look in drawn}.values()),
        'peaks': [timeline.peak(device) for device in range(len(timeline.rows))],
        'rows': [_columns(row) for row in timeline.rows],
    }
    # '<' would let a name end the script that the data stand in.
    text = json.dumps(data, separators=(',', ':')).replace('<', '\\u003c')
    page, chart, controls = ((PARTS / part).read_text(encoding='utf-8')
                             for part in ('page.html', 'chart.js', 'controls.js'))
    page = page.replace('/*CHART*/', chart).replace('/*CONTROLS*/', controls)
    page = page.replace('/*DATA*/', text)   # last: a name in the data may read like a placeholder
    if path is not None:
        Path(path).write_text(page, encoding='utf-8')
    return page


def _facts(timeline: Timeline, unit: str, factor: float) -> str:
    count = len(timeline.rows)
    bubble = f', bubble {timeline.bubble:.1%}' if count else ''
    return (f'{count} {"device" if count == 1 else "devices"}, makespan '
            f'{timeline.makespan * factor:.6g} {unit}{bubble}')


def _columns(row: tuple[Span, ...]) -> dict[str, Any]:
    """The spans of a device, a list a field; the labels, which repeat, by their number."""
    labels = {(str(span.op), span.op.kind): None for span in row}
    numbers = {label: number for number, label in enumerate(labels)}
    return {
        'label': [label for label, _ in labels], 'kind': [kind for _, kind in labels],
        'which': [numbers[str(span.op), span.op.kind] for span in row],
        'stage': [span.op.stage for span in row], 'micro': [span.op.micro_batch for span in row],
        'start': [span.start for span in row], 'end': [span.end for span in row],
        'live': [span.live for span in row], 'version': [span.version for span in row],
    }
