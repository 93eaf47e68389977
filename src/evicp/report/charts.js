"use strict";
// Charts as plain SVG: axes, marks, and what a reader hovers over. Colours are variables of the style sheet, so that
// themes and paper restyle a chart without drawing it again.
const Charts = (() => {
  const SIZE = 12;
  const LINE = 14;
  const pen = document.createElement("canvas").getContext("2d");

  function svg(name, attributes = {}, text) {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    return node;
  }

  function textWidth(text, size = SIZE, weight = 400) {
    pen.font = `${weight} ${size}px ${getComputedStyle(document.body).fontFamily}`;
    return pen.measureText(text).width;
  }

  const ink = (name) => `var(--${name})`;

  // ---- Ticks ------------------------------------------------------------------------------------------------

  // About `wanted` round numbers of a range, with as many digits as tell them apart.
  function roundTicks([low, high], wanted = 5) {
    const raw = (high - low) / wanted;
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= raw);
    const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
    const values = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i += 1) values.push(i * step);
    return values.map((value) => [value, value.toFixed(digits).replace("-", "−")]);
  }

  // 1, 2, 5, 10, ... between two powers of ten; fewer where there are many.
  function powerTicks([low, high]) {
    const values = [];
    for (let power = Math.floor(low); power <= Math.ceil(high); power += 1) {
      (high - low < 2 ? [1, 2, 5] : [1]).forEach((step) => values.push(+(step * 10 ** power).toPrecision(1)));
    }
    return values.map((value) => [Math.log10(value), String(value)]).filter(([place]) => place >= low && place <= high);
  }

  // ---- One chart --------------------------------------------------------------------------------------------

  class Chart {
    constructor(box, { label, x, y, right = 16, top = 14 }) {
      Object.assign(this, { box, x, y, right, top });
      this.width = Math.max(220, box.clientWidth || 520);
      this.height = Math.max(160, box.clientHeight || 300);
      this.left = 8 + (y.title ? 18 : 0) + Math.max(0, ...(y.ticks || []).map(([, text]) => textWidth(text))) + 6;
      if (x.categories) this.placeCategories();
      else this.deep = LINE;
      this.bottom = this.deep + 10 + (x.title ? 20 : 0);
      this.node = svg("svg", { viewBox: `0 0 ${this.width} ${this.height}`, role: "presentation" });
      box.setAttribute("aria-label", label);
      box.replaceChildren(this.node);
      this.axes();
    }

    placeCategories() {
      const { categories } = this.x;
      this.x.range = [-0.5, categories.length - 0.5];
      const widest = Math.max(...categories.flat().map((text) => textWidth(text, 11)));
      const slot = (this.width - this.left - this.right) / categories.length;
      this.turned = widest > slot - 4;
      this.deep = this.turned ? widest + 2 : LINE * Math.max(...categories.map((lines) => lines.length));
    }

    across(value) {
      const [low, high] = this.x.range;
      return this.left + ((value - low) / (high - low)) * (this.width - this.left - this.right);
    }

    up(value) {
      const [low, high] = this.y.range;
      return this.height - this.bottom - ((value - low) / (high - low)) * (this.height - this.bottom - this.top);
    }

    axes() {
      const floor = this.height - this.bottom;
      (this.y.ticks || []).forEach(([value, text]) => {
        this.stroke([[this.left, this.up(value)], [this.width - this.right, this.up(value)]], "grid", 1);
        this.write(text, this.left - 6, this.up(value) + 4, { anchor: "end" });
      });
      (this.x.ticks || []).forEach(([value, text]) => this.write(text, this.across(value), floor + 16, { anchor: "middle" }));
      (this.x.categories || []).forEach((lines, i) => this.category(lines, this.across(i), floor));
      if (this.x.title) this.write(this.x.title, (this.left + this.width - this.right) / 2, this.height - 6, { anchor: "middle" });
      if (!this.y.title) return;
      const [across, up] = [14, (this.top + floor) / 2];
      this.write(this.y.title, across, up, { anchor: "middle", transform: `rotate(-90 ${across} ${up})` });
    }

    category(lines, across, floor) {
      if (this.turned) {
        const text = lines.join(", ");
        this.write(text, across + 4, floor + 8, { anchor: "end", size: 11, transform: `rotate(-90 ${across + 4} ${floor + 8})` });
      } else lines.forEach((text, i) => this.write(text, across, floor + 16 + LINE * i, { anchor: "middle", size: 11, colour: i ? "soft" : "ink" }));
    }

    // ---- Marks ----------------------------------------------------------------------------------------------

    stroke(places, colour, width, dash = "") {
      const points = places.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join(" ");
      this.node.append(svg("polyline", { points, fill: "none", style: `stroke:${ink(colour)}`, "stroke-width": width, "stroke-dasharray": dash, "stroke-linejoin": "round" }));
    }

    line(xs, ys, colour, width = 2, dash = "") {
      this.stroke(Array.from(xs, (x, i) => [this.across(x), this.up(ys[i])]), colour, width, dash);
    }

    band(xs, lows, highs, colour) {
      const edge = (values) => Array.from(xs, (x, i) => `${this.across(x).toFixed(1)},${this.up(values[i]).toFixed(1)}`);
      this.node.append(svg("polygon", { points: [...edge(highs), ...edge(lows).reverse()].join(" "), style: `fill:${ink(colour)}` }));
    }

    bar(i, value, colour, share = 0.7) {
      const [from, to, top] = [this.across(i - share / 2), this.across(i + share / 2), this.up(value)];
      this.node.append(svg("rect", { x: from, y: top, width: to - from, height: Math.max(0, this.height - this.bottom - top), style: `fill:${ink(colour)}` }));
    }

    dot(x, y, colour, radius = 5) {
      this.node.append(svg("circle", { cx: this.across(x), cy: this.up(y), r: radius, style: `fill:${ink(colour)}` }));
    }

    interval(x, low, high, colour) {
      const [centre, from, to] = [this.across(x), this.up(low), this.up(high)];
      [[[centre, from], [centre, to]], [[centre - 4, from], [centre + 4, from]], [[centre - 4, to], [centre + 4, to]]].forEach((ends) => this.stroke(ends, colour, 1.5));
    }

    vertical(x, colour, dash = "2 3", width = 1) {
      this.stroke([[this.across(x), this.top], [this.across(x), this.height - this.bottom]], colour, width, dash);
    }

    horizontal(y, colour, dash = "6 4", width = 1.5) {
      this.stroke([[this.left, this.up(y)], [this.width - this.right, this.up(y)]], colour, width, dash);
    }

    write(text, x, y, { anchor = "start", colour = "soft", size = SIZE, weight = 400, transform = "", kind = "" } = {}) {
      const node = svg("text", { x, y, "text-anchor": anchor, "font-size": size, "font-weight": weight, style: `fill:${ink(colour)}`, class: kind }, text);
      if (transform) node.setAttribute("transform", transform);
      this.node.append(node);
      return node;
    }

    // A figure beside a mark, on ground of the page's colour so that lines do not strike it through. It stays inside.
    note(text, x, y, { anchor = "start", colour = "ink", size = SIZE, weight = 600 } = {}) {
      const room = textWidth(text, size, weight) + 4;
      const start = { start: x, middle: x - room / 2, end: x - room }[anchor];
      const from = Math.max(2, Math.min(start, this.width - room - 2));
      const floor = Math.max(size, Math.min(y, this.height - this.bottom - 2));
      this.node.append(svg("rect", { x: from, y: floor - size + 1, width: room, height: size + 3, class: "ground" }));
      this.write(text, from + 2, floor, { colour, size, weight, kind: "note" });
    }

    // ---- Hovering -------------------------------------------------------------------------------------------

    // Says `text(i)` of the place nearest to the pointer, of those at `xs` in the units of the axis.
    hover(xs, text) {
      const places = Array.from(xs, (x) => this.across(x));
      const guide = svg("line", { y1: this.top, y2: this.height - this.bottom, class: "guide", visibility: "hidden" });
      this.node.append(guide);
      this.node.addEventListener("pointermove", (event) => {
        const bounds = this.node.getBoundingClientRect();
        const x = ((event.clientX - bounds.left) / bounds.width) * this.width;
        const nearest = places.reduce((best, place, i) => (Math.abs(place - x) < Math.abs(places[best] - x) ? i : best), 0);
        guide.setAttribute("x1", places[nearest]);
        guide.setAttribute("x2", places[nearest]);
        guide.setAttribute("visibility", "visible");
        Tip.show(text(nearest), event.clientX, event.clientY);
      });
      this.node.addEventListener("pointerleave", () => { guide.setAttribute("visibility", "hidden"); Tip.hide(); });
    }
  }

  // ---- The one tooltip of the page ----------------------------------------------------------------------------

  const Tip = {
    node: null,
    show(text, x, y) {
      if (!this.node) document.body.append(this.node = Object.assign(document.createElement("div"), { id: "tip", role: "tooltip" }));
      this.node.textContent = text;
      this.node.hidden = false;
      const { width, height } = this.node.getBoundingClientRect();
      this.node.style.left = `${Math.max(8, Math.min(x + 12, innerWidth - width - 8))}px`;
      this.node.style.top = `${y + 16 + height < innerHeight ? y + 16 : Math.max(8, y - height - 10)}px`;
    },
    hide() { if (this.node) this.node.hidden = true; },
  };

  return { Chart, Tip, svg, textWidth, roundTicks, powerTicks };
})();
