"""HTML pages that need nothing but themselves: no script, no font and no picture from elsewhere.

They can be read in the light and in the dark, and printed. All text is escaped here; a browser is told to run no script
at all, whatever a page may contain.
"""

import base64
from collections.abc import Iterable
from html import escape

from fewgpu.workshop.grading.verdict import Line
from fewgpu.workshop.runner.results import time_of

ALLOWED = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
STYLE = '''
:root { color-scheme: light dark; --text: #1b1f24; --page: #ffffff; --soft: #59636e; --line: #d0d7de; --box: #f4f6f8;
        --good: #116329; --bad: #a40e26; --open: #7d4e00; --fill: #2f81c7; }
@media (prefers-color-scheme: dark) { :root { --text: #e6edf3; --page: #0f141a; --soft: #9aa5b1; --line: #343c46;
        --box: #1a212a; --good: #56d364; --bad: #ff8b85; --open: #e3b341; --fill: #4a9ae0; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 3rem; max-width: 60rem; color: var(--text); background: var(--page);
       font: 16px/1.5 system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .3rem; overflow-wrap: anywhere; }
h2 { font-size: 1.25rem; margin: 2.2rem 0 .5rem; border-bottom: 1px solid var(--line); padding-bottom: .2rem; }
h3 { font-size: 1rem; margin: 1.2rem 0 .2rem; }
p { margin: .4rem 0; overflow-wrap: anywhere; }
a { color: inherit; }
.soft { color: var(--soft); } .good { color: var(--good); } .bad { color: var(--bad); } .open { color: var(--open); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: .35rem .6rem .35rem 0; border-bottom: 1px solid var(--line); }
th { font-weight: 600; color: var(--soft); font-size: .85rem; }
.number { text-align: right; white-space: nowrap; } .cell { text-align: center; min-width: 2.2rem; padding-right: 0; }
.name { overflow-wrap: anywhere; min-width: 8rem; }
pre { font: 13px/1.4 ui-monospace, 'SF Mono', Menlo, Consolas, 'Liberation Mono', monospace; background: var(--box);
      border: 1px solid var(--line); border-radius: 6px; padding: .6rem .8rem; overflow-x: auto; margin: .4rem 0; }
img { display: block; max-width: 100%; background: #ffffff; border-radius: 6px; padding: .4rem; margin: .4rem 0; }
.bar { display: inline-block; width: 7rem; height: .6rem; border-radius: .3rem; background: var(--line);
       overflow: hidden; }
.bar span { display: block; height: 100%; background: var(--fill); print-color-adjust: exact;
            -webkit-print-color-adjust: exact; }
.under { margin-left: 4.5rem; }
@media (max-width: 40rem) { .under { margin-left: 0; } }
.mark { display: inline-block; min-width: 4.2rem; font-weight: 600; }
section { break-inside: avoid-page; }
@media print { :root { --text: #000; --page: #fff; --soft: #444; --line: #bbb; --box: #f6f6f6; --good: #116329;
        --bad: #a40e26; --open: #7d4e00; } body { font-size: 11pt; max-width: none; padding: 0; }
        pre { white-space: pre-wrap; } h2, h3 { break-after: avoid; } }
'''


def document(title: str, body: str) -> str:
    """A whole page. `body` is HTML; `title` is text."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{ALLOWED}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<title>{text(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n')


def text(value: object) -> str:
    """Any text, as HTML that shows it. What cannot be encoded is replaced."""
    return escape(str(value).encode('utf-8', 'replace').decode('utf-8'))


def sentence(title: str) -> str:
    """A title as it begins a line."""
    return title[:1].upper() + title[1:]


def when(time: str | None) -> str:
    """A time as it is read: 1 March 2026, 14:05."""
    moment = time_of(time)
    return f'{moment.day} {moment:%B %Y, %H:%M}'


def tag(name: str, content: str, style: str = '') -> str:
    """An element around HTML."""
    return f'<{name} class="{escape(style)}">{content}</{name}>' if style else f'<{name}>{content}</{name}>'


def block(content: str) -> str:
    """Text as it stands, in a box; nothing for no text."""
    return tag('pre', text(content.strip('\n'))) if content.strip() else ''


def listing(lines: Iterable[Line]) -> str:
    """Lines of a learner's file, with their numbers."""
    return block('\n'.join(f'{f"{line.file}, " if line.file else ""}line {line.number}:  {line.text.strip()}'
                           for line in lines))


def picture(svg: str, about: str) -> str:
    """A drawing, as an image that holds it: nothing in it can act, and two of them do not disturb each other."""
    if not svg.strip():
        return ''
    data = base64.b64encode(svg.encode('utf-8', 'replace')).decode('ascii')
    return f'<img src="data:image/svg+xml;base64,{data}" alt="{text(about)}">'


def bar(share: float) -> str:
    """A share, 0 to 1, as a bar."""
    width = 100 * min(max(share, 0.0), 1.0)
    return f'<span class="bar"><span style="width:{width:.0f}%"></span></span>'


def row(cells: Iterable[tuple[str, str]], of: str = 'td') -> str:
    """A row of a table: HTML, each with its style."""
    return tag('tr', ''.join(tag(of, content, style) for content, style in cells))


def table(head: Iterable[tuple[str, str]], rows: Iterable[str]) -> str:
    """A table that scrolls by itself where it is too wide."""
    return tag('div', tag('table', tag('thead', row(head, 'th')) + tag('tbody', ''.join(rows))), 'wide')
