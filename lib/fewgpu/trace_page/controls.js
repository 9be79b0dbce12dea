// What moves the chart: zoom, pan, steps through time, and the pointer.

function redraw() { asked ||= requestAnimationFrame(draw); }

function show(left, right) {   // at most all of it, at least a millionth
  const span = between(right - left, length * 1e-6, length);
  from = between((left + right - span) / 2, 0, length - span);
  to = from + span;
  redraw();
}

function zoom(by, centre = now >= from && now <= to ? now : (from + to) / 2) {
  show(centre - (centre - from) * by, centre + (to - centre) * by);
}

function pan(seconds, start = from, span = to - from) {
  const left = between(start + seconds, 0, length - span);
  show(left, left + span);
}

function step(number) {
  number = between(number, 0, Math.max(moments.length - 1, 0));
  now = moments[number] || 0;
  $('step').value = number;
  if (now < from || now > to) pan(now - (from + to) / 2);
  const some = rows.slice(0, 12).map((row, r) => `${data.names[r]} ${says(row, doing(row, now))}`);
  $('moment').textContent = `At ${time(now, 6)}: ${some.join(', ')}${rows.length > 12 ? ', …' : ''}`;
  redraw();
}

function nearest(t) {
  const nearer = (best, one, i) => Math.abs(one - t) < Math.abs(moments[best] - t) ? i : best;
  return moments.reduce(nearer, 0);
}

const acts = {
  back: () => step(+$('step').value - 1), on: () => step(+$('step').value + 1),
  in: () => zoom(1 / 1.5), out: () => zoom(1.5), all: () => show(0, length),
};
const keys = {
  ArrowLeft: acts.back, ArrowRight: acts.on, Home: () => step(0), End: () => step(moments.length - 1),
  '+': acts.in, '=': acts.in, '-': acts.out, 0: acts.all,
};
const shifted = { ArrowLeft: () => pan((from - to) / 5), ArrowRight: () => pan((to - from) / 5) };

document.addEventListener('keydown', event => {
  const act = (event.shiftKey && shifted[event.key]) || keys[event.key];
  if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  act();
});
for (const [id, act] of Object.entries(acts)) $(id).onclick = act;
$('step').oninput = () => step(+$('step').value);
$('scroll').onscroll = redraw;
addEventListener('resize', redraw);

// The pointer

function hover(px, py, event) {
  const number = Math.floor((py + $('scroll').scrollTop) / pitch), tip = $('tip');
  const row = px > gutter && py < height - foot ? rows[number] : null, i = row ? doing(row, at(px)) : -1;
  tip.hidden = i < 0;
  if (i < 0) return;
  tip.textContent = [
    `${label(row, i)}  ${look(row, i).label}`,
    `${data.names[number]}, stage ${row.stage[i]}`,
    row.micro[i] >= 0 && `micro-batch ${row.micro[i]}`,
    `start ${time(row.start[i], 6)}`, `takes ${time(row.end[i] - row.start[i])}`,
    row.live[i] != null && `live at its end: ${amount(row.live[i])}`,
    row.version[i] != null && `weight version ${row.version[i]}`,
  ].filter(Boolean).join('\n');
  tip.style.left = `${Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)}px`;
  tip.style.top = `${Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 8)}px`;
}

let held = null;   // where a drag began
function listen(type, act) {
  chart.addEventListener(type, event => {
    const box = chart.getBoundingClientRect();
    act(event.clientX - box.left, event.clientY - box.top, event);
  }, { passive: false });
}
listen('pointerdown', (px, py, event) => {
  held = { px, from, moved: false };
  chart.setPointerCapture(event.pointerId);
});
listen('pointermove', (px, py, event) => {
  if (!held) return hover(px, py, event);
  held.moved ||= Math.abs(px - held.px) > 3;
  if (held.moved) pan((held.px - px) / (width - gutter - margin) * (to - from), held.from);
});
listen('pointerup', px => {
  if (held && !held.moved && px > gutter) step(nearest(at(px)));
  held = null;
});
listen('pointerleave', () => { $('tip').hidden = true; });
listen('wheel', (px, py, event) => {
  if (px < gutter) return;   // over the names the wheel scrolls the rows
  event.preventDefault();
  const sideways = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
  const pans = event.shiftKey || Math.abs(sideways) > Math.abs(event.deltaY);
  if (pans) pan(Math.sign(sideways) * (to - from) / 12); else zoom(Math.exp(Math.sign(event.deltaY) / 5), at(px));
});

// The start

function explain(...parts) {
  const item = document.createElement('li');
  item.append(...parts);
  $('legend').append(item);
}

function swatch(kind) {
  const small = document.createElement('canvas'), ink = small.getContext('2d');
  [small.width, small.height] = [44, 26];
  ink.scale(2, 2);
  block(ink, kind, 0, 0, 22, 13);
  return small;
}

function measureNames() {
  pen.font = '12px system-ui, sans-serif';
  const wide = texts => Math.max(0, ...texts.map(text => pen.measureText(text).width));
  const longest = row => row.label.reduce((a, b) => b.length > a.length ? b : a, 'idle');
  const doings = rows.map(row => longest(row) + (row.stages.length > 1 ? ' of stage 99' : ''));
  gutter = between(wide(data.names) + wide(doings) + 24, counted ? 140 : 0, 320);
}

function paint() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ['paper', 'ink', 'grey', 'idle', 'line', 'mark'])
    colours[name] = style.getPropertyValue(`--${name}`).trim();
  redraw();
}

document.title = document.querySelector('h1').textContent = data.title;
$('facts').textContent = data.facts;
chart.setAttribute('aria-label', `${data.title}: ${data.facts}`);
for (const kind of data.legend) explain(swatch(kind), kind.label);
if (rows.some(row => row.stages.length > 1)) explain('the lower in its row, the later the stage');
if (counted) explain(`grey, under a row: live ${data.counts}`);
$('step').max = Math.max(moments.length - 1, 0);
measureNames();
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', paint);
paint();
step(0);
