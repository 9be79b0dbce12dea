// The chart of page.html: what the data say, and how it is drawn. `fewgpu.trace_html` puts page.html,
// chart.js, controls.js and the data into one page.
'use strict';
const $ = id => document.getElementById(id);
const data = JSON.parse($('data').textContent), rows = data.rows, length = data.makespan || 1;
const chart = $('chart'), pen = chart.getContext('2d');
for (const row of rows) row.stages = [...new Set(row.stage)].sort((a, b) => a - b);
const most = Math.max(0, ...data.peaks.map(peak => peak || 0)), counted = most > 0;
const lane = rows.length > 24 ? 18 : 26, strip = counted ? 16 : 0, pitch = lane + strip + 6, foot = 24;
const moments = Float64Array.from(new Set(rows.flatMap(row => [...row.start, ...row.end]))).sort();

let from = 0, to = length, now = 0;                       // what is shown, and the time that is looked at
let gutter = 120, width = 800, height = 300, margin = 8;  // of the chart, in pixels
let colours = {}, asked = 0;

// What the data say

const between = (value, least, most) => Math.min(Math.max(value, least), most);
const time = (t, digits = 4) => `${+(t * data.factor).toPrecision(digits)} ${data.unit}`;
const kindOf = (row, i) => row.kind[row.which[i]], label = (row, i) => row.label[row.which[i]];
const look = (row, i) => data.looks[kindOf(row, i)] || data.other;
const isWait = (row, i) => ['send', 'recv'].includes(kindOf(row, i));

function amount(n) {
  if (data.counts !== 'bytes') return `${n} ${data.counts}`;
  for (const [unit, size] of [['GB', 1e9], ['MB', 1e6], ['kB', 1e3]])
    if (n >= size) return `${(n / size).toPrecision(4)} ${unit}`;
  return `${n} B`;
}

function firstAfter(row, t) {   // the first span that ends after t; the spans of a row are in order
  let low = 0, high = row.end.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (row.end[middle] > t) high = middle; else low = middle + 1;
  }
  return low;
}

function doing(row, t) {   // the number of the span at this time, or -1
  const i = firstAfter(row, t);
  return i < row.start.length && row.start[i] <= t ? i : -1;
}

function says(row, i) {
  if (i < 0) return 'idle';
  return label(row, i) + (row.stages.length > 1 ? ` of stage ${row.stage[i]}` : '');
}

// The chart: only what is visible is drawn

const x = t => gutter + (t - from) / (to - from) * (width - gutter - margin);
const at = px => from + (px - gutter) / (width - gutter - margin) * (to - from);
const inside = px => between(px, gutter, width - margin);

function fill(colour, left, top, wide, high) {
  pen.fillStyle = colour;
  pen.fillRect(left, top, wide, high);
}

function write(text, px, y, colour, align = 'left', size = 12) {
  pen.font = `${size}px system-ui, sans-serif`;
  pen.textAlign = align;
  pen.fillStyle = colour;
  pen.fillText(text, px, y);
}

const patterns = {};
function hatching(kind) {   // the hatches of the printed pictures
  if (patterns[kind.label]) return patterns[kind.label];
  const tile = document.createElement('canvas'), ink = tile.getContext('2d');
  tile.width = tile.height = 6;
  ink.strokeStyle = ink.fillStyle = kind.edge;
  ink.lineWidth = .9;
  const lines = { '/': ['-1 7 7 -1', '-1 1 1 -1', '5 7 7 5'], '.': [],
    x: ['-1 7 7 -1', '-1 1 1 -1', '5 7 7 5', '-1 -1 7 7', '5 -1 7 1', '-1 5 1 7'] };
  for (const line of lines[kind.hatch[0]]) {
    const [x0, y0, x1, y1] = line.split(' ');
    ink.beginPath(); ink.moveTo(x0, y0); ink.lineTo(x1, y1); ink.stroke();
  }
  if (kind.hatch[0] === '.') ink.fillRect(2, 2, 1.8, 1.8);
  return patterns[kind.label] = pen.createPattern(tile, 'repeat');
}

function block(ink, kind, left, top, wide, high) {
  ink.fillStyle = kind.face;
  ink.fillRect(left, top, wide, high);
  if (kind.hatch && wide > 4) {
    ink.fillStyle = hatching(kind);
    ink.fillRect(left, top, wide, high);
  }
  ink.strokeStyle = kind.edge === 'none' ? '#9aa3ab' : kind.edge;
  if (wide > 3) ink.strokeRect(left + .5, top + .5, wide - 1, high - 1);
}

function drawRow(row, top) {
  const several = row.stages.length - 1, high = several ? lane * .66 : lane;
  fill(colours.idle, inside(x(0)), top, inside(x(length)) - inside(x(0)), lane);
  const narrow = new Columns(top);
  for (let i = firstAfter(row, from); i < row.start.length && row.start[i] < to; i++) {
    const left = inside(x(row.start[i])), right = inside(x(row.end[i])), wide = right - left;
    const kind = look(row, i);
    if (isWait(row, i)) {
      fill(kind.face, left, top + lane / 2 - 1, Math.max(wide, .5), 2);
    } else if (wide < 2) {
      narrow.add(kind, left, right);
    } else {   // the later its stage, the lower in the row
      const y = several ? top + (lane - high) * row.stages.indexOf(row.stage[i]) / several : top;
      block(pen, kind, left, y, wide, high);
      name(row, i, kind, left + wide / 2, y + high / 2, wide);
    }
  }
  narrow.draw();
}

class Columns {   // narrow spans share a column of pixels, each by its time in it
  constructor(top) { this.top = top; this.pixel = -1; this.shares = new Map(); }

  add(kind, left, right) {
    for (let pixel = Math.floor(left); pixel < right; pixel++) {
      if (pixel !== this.pixel) this.draw();
      this.pixel = pixel;
      const share = Math.min(right, pixel + 1) - Math.max(left, pixel);
      this.shares.set(kind.label, (this.shares.get(kind.label) || 0) + share);
    }
  }

  draw() {
    const all = Math.max(1, [...this.shares.values()].reduce((sum, share) => sum + share, 0));
    let bottom = this.top + lane;
    for (const kind of data.legend) {
      const high = (this.shares.get(kind.label) || 0) / all * lane;
      if (high) fill(kind.face, this.pixel, bottom -= high, 1, high);
    }
    this.shares.clear();
  }
}

function name(row, i, kind, middle, y, wide) {   // F3, or 3, where it fits
  if (wide < 9) return;
  pen.font = '12px system-ui, sans-serif';
  const fits = text => pen.measureText(text).width < wide - 3;
  const text = [label(row, i), ...row.micro[i] < 0 ? [] : [String(row.micro[i])]].find(fits);
  if (!text) return;
  const room = pen.measureText(text).width / 2 + 1.5;
  if (kind.hatch) fill(kind.face, middle - room, y - 6, 2 * room, 12);
  write(text, middle, y + .5, kind.ink, 'center');
}

function drawMemory(row, top) {
  const bottom = top + strip - 2, last = row.end.length - 1;
  let left = -1, high = 0;   // where the curve is, and its highest value in this pixel
  pen.beginPath();
  for (let i = Math.max(0, firstAfter(row, from) - 1); i <= last && row.end[i] < to; i++) {
    if (row.live[i] == null) continue;
    if (left < 0) pen.moveTo(left = inside(x(row.end[i])), bottom);
    high = Math.max(high, row.live[i] / most * (strip - 2));
    const right = inside(x(i < last ? row.end[i + 1] : length));
    if (right - left < 1 && right < width - margin) continue;
    pen.lineTo(left, bottom - high);
    pen.lineTo(right, bottom - high);
    left = right; high = 0;
  }
  pen.lineTo(left, bottom);
  pen.globalAlpha = .45; pen.fillStyle = colours.grey; pen.fill(); pen.globalAlpha = 1;
}

function drawAxis() {
  const about = (to - from) * data.factor * 90 / (width - gutter);
  const power = 10 ** Math.floor(Math.log10(about));
  const tick = [1, 2, 5, 10].map(k => k * power).find(k => k >= about) / data.factor, y = height - foot;
  fill(colours.paper, 0, y, width, foot);
  fill(colours.line, gutter, y, width - gutter, 1);
  const first = Math.ceil(from / tick - 1e-9);
  for (let k = first; k * tick <= to * (1 + 1e-12); k++) {
    const text = +(k * tick * data.factor).toPrecision(8) + (k === first ? ` ${data.unit}` : '');
    write(text, Math.min(x(k * tick), width - 14), y + 14, colours.grey, 'center');
  }
}

function draw() {
  asked = 0;
  const dots = window.devicePixelRatio || 1, above = $('scroll').scrollTop, all = rows.length * pitch + foot;
  width = $('scroll').clientWidth;
  height = Math.min(all, Math.floor(innerHeight * .72));
  [chart.width, chart.height] = [width * dots, height * dots];
  const sizes = [width, height, all - height].map(px => `${px}px`);
  [chart.style.width, chart.style.height, $('spacer').style.height] = sizes;
  pen.scale(dots, dots);
  pen.textBaseline = 'middle';
  for (let r = Math.floor(above / pitch); r < rows.length && r * pitch - above < height - foot; r++) {
    const top = r * pitch - above + 2, i = doing(rows[r], now);
    drawRow(rows[r], top);
    write(data.names[r], 0, top + lane / 2, colours.ink);
    write(says(rows[r], i), gutter - 8, top + lane / 2, i < 0 ? colours.grey : colours.mark, 'right');
    if (!counted) continue;
    drawMemory(rows[r], top + lane + 1);
    const peak = data.peaks[r] == null ? 'not counted' : `peak ${amount(data.peaks[r])}`;
    write(peak, 0, top + lane + strip / 2 + 1, colours.grey, 'left', 11);
  }
  drawAxis();
  if (now >= from && now <= to) fill(colours.mark, x(now) - .75, 0, 1.5, height - foot + 4);
}
