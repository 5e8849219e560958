// One step's events on a canvas: lanes stacked by nesting, zoom and pan by wheel, drag, pinch, keys and buttons.
const ROW = 17;
const GAP = 9;
const AXIS = 22;
const LABEL = 15;
const DEEPEST = 8;

function time(ns) {
  for (const [unit, scale] of [["s", 1e9], ["ms", 1e6], ["µs", 1e3]]) {
    if (Math.abs(ns) >= scale) return `${Number((ns / scale).toPrecision(3))} ${unit}`;
  }
  return `${Math.round(ns)} ns`;
}

// White or near-black, whichever reads better on the colour.
function inkOn(colour) {
  const [red, green, blue] = [1, 3, 5].map((at) => (parseInt(colour.slice(at, at + 2), 16) / 255) ** 2.2);
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.22 ? "#111" : "#fff";
}

function unpack(data) {
  const events = [];
  let top = AXIS;
  const lanes = data.lanes.map((lane, number) => {
    const own = [];
    for (let i = 0; i < lane.events.length; i += 4) {
      const [start, length, name, kind] = lane.events.slice(i, i + 4);
      own.push({ start, end: start + length, name, kind, lane: number, row: 0 });
    }
    own.sort((a, b) => a.start - b.start || b.end - a.end);
    const open = [];
    let deepest = 0;
    for (const event of own) {
      while (open.length && open[open.length - 1] <= event.start) open.pop();
      event.row = Math.min(open.length, DEEPEST - 1);
      open.push(event.end);
      deepest = Math.max(deepest, event.row);
    }
    events.push(...own);
    const placed = { label: lane.label, top: top + LABEL, rows: deepest + 1 };
    top = placed.top + placed.rows * ROW + GAP;
    return placed;
  });
  return { lanes, events, height: top };
}

class Timeline {
  constructor(figure) {
    this.figure = figure;
    this.canvas = figure.querySelector("canvas");
    this.output = figure.querySelector("output");
    this.data = JSON.parse(figure.querySelector("script").textContent);
    Object.assign(this, unpack(this.data));
    this.inks = this.data.colours.map(inkOn);
    this.whole = Math.max(this.data.window, ...this.events.map((event) => event.end), 1);
    this.from = 0;
    this.to = this.whole;
    this.selected = null;
    this.marks = [];
    this.pointers = new Map();
    figure.hidden = false;
    this.canvas.style.height = `${this.height}px`;
    this.drawLegend();
    this.listen();
    this.draw();
  }

  get width() { return this.canvas.clientWidth || 1; }
  x(ns) { return ((ns - this.from) * this.width) / (this.to - this.from); }
  ns(x) { return this.from + (x * (this.to - this.from)) / this.width; }

  show(from, to) {
    const span = Math.min(Math.max(to - from, Math.min(50, this.whole)), this.whole);
    this.from = Math.min(Math.max(from, 0), this.whole - span);
    this.to = this.from + span;
    this.draw();
  }

  // What a finding marks: bands over all lanes, the longest one in view.
  showMarks(marks) {
    this.marks = marks;
    this.figure.closest("details")?.setAttribute("open", "");
    const [from, to] = marks.reduce((best, mark) => (mark[1] - mark[0] > best[1] - best[0] ? mark : best));
    this.show(from - 2 * (to - from), to + 2 * (to - from));
    setTimeout(() => this.canvas.focus({ preventScroll: true })); // the link's own way there takes the focus first
  }

  zoom(factor, at = this.ns(this.width / 2)) {
    this.show(at - (at - this.from) * factor, at + (this.to - at) * factor);
  }

  pan(share) {
    const by = (this.to - this.from) * share;
    this.show(this.from + by, this.to + by);
  }

  act(name) {
    if (name === "in") this.zoom(0.5);
    else if (name === "out") this.zoom(2);
    else if (name === "left") this.pan(-0.25);
    else if (name === "right") this.pan(0.25);
    else if (name === "reset") this.show(0, this.whole);
    else return false;
    return true;
  }

  step(by) {
    const inOrder = this.events;
    if (!inOrder.length) return;
    const at = inOrder.indexOf(this.selected);
    this.select(inOrder[(at + by + inOrder.length) % inOrder.length]);
    const { start, end } = this.selected;
    if (end < this.from || start > this.to) this.show(start - (this.to - this.from) / 2, start + (this.to - this.from) / 2);
  }

  select(event) {
    if (event === this.selected) return;
    this.selected = event;
    this.output.textContent = event ? this.describe(event) : "";
    this.draw();
  }

  describe({ start, end, name, kind, lane }) {
    const { names, classes, lanes } = this.data;
    return `${names[name]} · ${classes[kind]} · ${lanes[lane].label} · ${time(end - start)} at ${time(start)}`;
  }

  hit(x, y) {
    const at = this.ns(x);
    const slack = ((this.to - this.from) / this.width) * 2;
    const found = (event) => {
      const top = this.lanes[event.lane].top + event.row * ROW;
      return y >= top && y < top + ROW && event.start - slack <= at && event.end + slack >= at;
    };
    return this.events.findLast(found) ?? null;
  }

  listen() {
    const { canvas, figure } = this;
    figure.querySelector(".tools").addEventListener("click", (event) => this.act(event.target.dataset.act));
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      this.pointers.set(event.pointerId, event.offsetX);
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => this.move(event));
    for (const name of ["pointerup", "pointercancel"]) {
      canvas.addEventListener(name, (event) => this.pointers.delete(event.pointerId));
    }
    new ResizeObserver(() => this.draw()).observe(canvas);
    document.addEventListener("themechange", () => this.draw());
  }

  key(event) {
    const acts = { "+": "in", "=": "in", "-": "out", ArrowLeft: "left", ArrowRight: "right", 0: "reset", Home: "reset" };
    const steps = { ArrowDown: 1, Enter: event.shiftKey ? -1 : 1, ArrowUp: -1 };
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key in acts) this.act(acts[event.key]);
    else if (event.key in steps) this.step(steps[event.key]);
    else return;
    event.preventDefault();
  }

  wheel(event) {
    const sideways = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
    if (!event.ctrlKey && !sideways && document.activeElement !== this.canvas) return;
    event.preventDefault();
    if (sideways) this.pan((event.deltaX || event.deltaY) / this.width);
    else this.zoom(Math.exp(Math.sign(event.deltaY) * Math.min(Math.abs(event.deltaY), 200) * 0.003), this.ns(event.offsetX));
  }

  move(event) {
    const before = this.pointers.get(event.pointerId);
    if (before === undefined) return this.select(this.hit(event.offsetX, event.offsetY));
    const [other] = [...this.pointers].filter(([id]) => id !== event.pointerId).map(([, x]) => x);
    this.pointers.set(event.pointerId, event.offsetX);
    if (other === undefined) return this.pan((before - event.offsetX) / this.width);
    const factor = Math.abs(before - other) / Math.max(Math.abs(event.offsetX - other), 1);
    return this.zoom(Math.min(Math.max(factor, 0.5), 2), this.ns(other));
  }

  drawLegend() {
    const used = [...new Set(this.events.map((event) => event.kind))].sort((a, b) => a - b);
    this.figure.querySelector(".legend").append(...used.flatMap((kind) => {
      const key = document.createElement("span");
      const swatch = document.createElement("i");
      key.className = "key";
      swatch.style.background = this.data.colours[kind];
      key.append(swatch, this.data.classes[kind]);
      return [key, " "];
    }));
  }

  draw() {
    const { canvas, width, height } = this;
    const ratio = devicePixelRatio || 1;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.dataset.from = Math.round(this.from);
    canvas.dataset.to = Math.round(this.to);
    canvas.dataset.marks = this.marks.length;
    const pen = canvas.getContext("2d");
    const style = getComputedStyle(canvas);
    this.ink = { text: style.getPropertyValue("color"), font: getComputedStyle(document.body).fontFamily };
    pen.scale(ratio, ratio);
    this.drawAxis(pen);
    for (const lane of this.lanes) this.drawText(pen, lane.label, 6, lane.top - 4, 0.75);
    for (const event of this.events) if (event.end >= this.from && event.start <= this.to) this.drawEvent(pen, event);
    pen.fillStyle = style.getPropertyValue("--warn");
    pen.globalAlpha = 0.22;
    for (const [from, to] of this.marks) {
      if (to >= this.from && from <= this.to) pen.fillRect(this.x(from), AXIS, Math.max(this.x(to) - this.x(from), 1), this.height);
    }
    pen.globalAlpha = 1;
  }

  drawText(pen, text, x, y, alpha = 1) {
    pen.globalAlpha = alpha;
    pen.fillStyle = this.ink.text;
    pen.font = `11px ${this.ink.font}`;
    pen.fillText(text, x, y);
    pen.globalAlpha = 1;
  }

  drawAxis(pen) {
    const rough = (this.to - this.from) / Math.max(this.width / 110, 1);
    const power = 10 ** Math.floor(Math.log10(Math.max(rough, 1)));
    const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
    for (let at = Math.ceil(this.from / step) * step; at <= this.to; at += step) {
      const x = this.x(at);
      pen.fillStyle = this.ink.text;
      pen.globalAlpha = 0.12;
      pen.fillRect(x, 0, 1, this.height);
      this.drawText(pen, time(at), x + 4, 14, 0.75);
    }
  }

  drawEvent(pen, event) {
    const left = Math.max(this.x(event.start), 0);
    const right = Math.min(this.x(event.end), this.width);
    const top = this.lanes[event.lane].top + event.row * ROW;
    const wide = Math.max(right - left - 0.5, 0.7);
    pen.fillStyle = this.data.colours[event.kind];
    pen.fillRect(left, top, wide, ROW - 2);
    if (event === this.selected) {
      pen.strokeStyle = this.ink.text;
      pen.lineWidth = 2;
      pen.strokeRect(left, top, wide, ROW - 2);
    }
    if (wide < 46) return;
    pen.save();
    pen.beginPath();
    pen.rect(left, top, wide - 4, ROW);
    pen.clip();
    pen.fillStyle = this.inks[event.kind];
    pen.font = `11px ${this.ink.font}`;
    pen.fillText(this.data.names[event.name], left + 4, top + 11.5);
    pen.restore();
  }
}

const drawn = new Map();
document.querySelectorAll("figure.timeline").forEach((figure) => drawn.set(figure.id, new Timeline(figure)));
document.querySelectorAll("a[data-timeline]").forEach((link) => {
  const timeline = drawn.get(link.dataset.timeline);
  if (!timeline) return;
  link.hidden = false;
  link.addEventListener("click", () => timeline.showMarks(JSON.parse(link.dataset.marks)));
});
