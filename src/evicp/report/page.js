"use strict";
(async () => {
  // Everything that moves was counted in advance for each coverage of the slider; the page only looks it up.
  const TYPES = { f64: Float64Array, f32: Float32Array, u8: Uint8Array, u16: Uint16Array, u32: Uint32Array };
  const PAGE = 20;
  const $ = (id) => document.getElementById(id);

  // ---- Data -------------------------------------------------------------------------------------------------

  async function inflate(text) {
    const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Response(stream).arrayBuffer();
  }

  async function unpack(node) {
    if (node === null || typeof node !== "object") return node;
    if (Array.isArray(node)) return typeof node[0] === "object" ? Promise.all(node.map(unpack)) : node;
    if ("data" in node && "shape" in node) {
      const values = new TYPES[node.type](await inflate(node.data));
      return { values, shape: node.shape, at: (...index) => values[node.shape.reduce((sum, size, i) => sum * size + index[i], 0)] };
    }
    const entries = Object.entries(node).map(async ([name, value]) => [name, await unpack(value)]);
    return Object.fromEntries(await Promise.all(entries));
  }

  const data = await unpack(JSON.parse($("data").textContent));
  const last = data.grid.length - 1;
  const state = { position: data.start, method: 0, row: 0, filter: "all", find: "", sort: "coverage", down: false, page: 0 };
  const methods = data.methods;
  methods.forEach((method) => { method.law = method.law === null ? null : data.laws[method.law]; });

  const current = () => methods[state.method];
  const asked = () => data.grid[state.position];
  const className = (label) => (data.classes.names ? data.classes.names[label] : `class ${label}`);
  const confidence = `${+(100 * data.confidence).toPrecision(4)} %`;

  // ---- Numbers as text --------------------------------------------------------------------------------------

  const whole = (value) => value.toLocaleString("en-US");
  const fixed = (value, digits) => (value === null || Number.isNaN(value) ? "–" : value.toFixed(digits));
  const percent = (value, digits = 1) => `${fixed(100 * value, digits)} %`;
  const coverageText = (value) => fixed(value, data.grid.length > 1 ? 3 : 4);
  const sizeText = (value) => (value < 100 ? fixed(value, 2) : fixed(value, 0));
  const short = (value) => (value === 0 ? "0" : Math.abs(value) >= 0.001 && Math.abs(value) < 1e5 ? String(+value.toPrecision(3)) : value.toExponential(1));
  const plural = (count, one, many) => `${whole(count)} ${count === 1 ? one : many}`;
  const signed = (points) => `${points >= 0 ? "+" : "−"}${Math.abs(points).toFixed(2)}`;

  function stats(method, p) {
    const hits = method.coverage.hits.values[p];
    const counts = method.bins ? [method.bins.at(p, 0), method.bins.at(p, 1)] : [method.empty * data.m, method.singletons * data.m];
    return {
      hits,
      coverage: hits / data.m,
      size: method.total_size.values[p] / data.m,
      sscv: method.sscv.values[p],
      sscvCount: method.sscv_count.values[p],
      sat: method.sat.values[p],
      empty: counts[0] / data.m,
      singletons: counts[1] / data.m,
      band: method.law && method.law.observed_low ? [method.law.observed_low.values[p], method.law.observed_high.values[p]] : null,
    };
  }

  // ---- Small pieces of page ---------------------------------------------------------------------------------
  // Text only ever enters the page as text: names are data, not markup.

  function element(name, text, attributes = {}) {
    const node = document.createElement(name);
    if (text !== undefined && text !== null) node.textContent = text;
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    return node;
  }

  function show(id, value, text) {
    $(id).textContent = text;
    $(id).dataset.value = String(value);
  }

  function fillTable(id, head, rows, caption) {
    const top = element("thead");
    const line = element("tr");
    head.forEach((title) => line.append(element("th", title, { scope: "col" })));
    top.append(line);
    const body = element("tbody");
    rows.forEach((cells) => {
      const row = element("tr");
      cells.forEach((cell, i) => row.append(i ? element("td", cell, { "data-name": head[i] }) : element("th", cell, { scope: "row" })));
      body.append(row);
    });
    $(id).replaceChildren(...(caption ? [element("caption", caption)] : []), top, body);
    return [...body.children];
  }

  function svg(name, attributes, text) {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    return node;
  }

  // ---- Key figures ------------------------------------------------------------------------------------------

  function renderGauge(now) {
    const band = now.band || [asked(), asked()];
    const low = Math.min(band[0], now.coverage, asked());
    const high = Math.max(band[1], now.coverage, asked());
    const width = $("gauge").clientWidth || 300;
    const reach = Math.max(high - low, 1e-3);
    const x = (value) => 14 + ((value - low) / reach) * (width - 28);
    const picture = svg("svg", { viewBox: `0 0 ${width} 24`, "aria-hidden": "true" });
    picture.append(
      svg("line", { class: "gauge-axis", x1: 0, x2: width, y1: 12, y2: 12 }),
      svg("rect", { class: "gauge-band", x: x(band[0]), y: 4, width: Math.max(1, x(band[1]) - x(band[0])), height: 16, rx: 3 }),
      svg("line", { class: "gauge-asked", x1: x(asked()), x2: x(asked()), y1: 0, y2: 24 }),
      svg("circle", { class: "gauge-dot", cx: x(now.coverage), cy: 12, r: 5 }),
    );
    $("gauge").replaceChildren(picture);
  }

  function promiseOf(method) {
    if (method.n === null) return "nothing is promised for this score";
    if (!method.by) return "no band is known for sets of this kind";
    return `the promise holds in every ${method.by === "uncertainty" ? "band of uncertainty" : method.by} on its own`;
  }

  function renderTiles(now) {
    const method = current();
    const kept = !now.band || now.coverage >= now.band[0];
    show("observed", now.coverage, fixed(now.coverage, 4));
    $("observed-aside").textContent = now.band
      ? `band: ${confidence} of runs, ${fixed(now.band[0], 4)} to ${fixed(now.band[1], 4)}; dashed: asked`
      : promiseOf(method);
    $("band-note").hidden = !now.band;
    show("mean-size", now.size, sizeText(now.size));
    $("size-aside").textContent = `of ${whole(data.n_classes)} labels`;
    show("sat", now.sat, fixed(now.sat, 3));
    $("sat-aside").textContent = `SSCV ${fixed(now.sscv, 3)}, in a range of ${plural(now.sscvCount, "row", "rows")}`;
    show("singletons", now.singletons, percent(now.singletons));
    show("empty", now.empty, percent(now.empty));
    $("tiles").classList.toggle("off", !kept);
    renderGauge(now);
    const full = method.threshold && method.threshold.values[state.position] === Infinity;
    const verdict = now.band
      ? `${verdictOf(now)} the promise (${confidence} of runs give ${fixed(now.band[0], 4)} to ${fixed(now.band[1], 4)})`
      : promiseOf(method);
    const note = full ? ` ${whole(method.n)} calibration rows cannot guarantee this coverage, so every set is full.` : "";
    sayLater(
      `${method.name} at coverage ${coverageText(asked())}: observed ${fixed(now.coverage, 4)} on ${whole(data.m)} rows, ${verdict}; ` +
        `${sizeText(now.size)} labels per set on average.${note}`,
      !kept || full,
    );
  }

  let saying = 0;
  function sayLater(text, off) {
    // Screen readers hear the sentence once the slider rests; eyes see it at once in the tiles.
    clearTimeout(saying);
    $("verdict").classList.toggle("off", Boolean(off));
    saying = setTimeout(() => { $("verdict").textContent = text; }, 150);
  }

  function renderMethods() {
    const head = ["score", "coverage", "mean size", "SSCV", "SSCV rows", "SAT", "single labels", "empty sets"];
    const rows = methods.map((method) => {
      const now = stats(method, state.position);
      return [method.n === null ? `${method.name} (not conformal)` : method.name, fixed(now.coverage, 4), sizeText(now.size),
        fixed(now.sscv, 3), whole(now.sscvCount), fixed(now.sat, 3), percent(now.singletons), percent(now.empty)];
    });
    fillTable("table-methods", head, rows).forEach((row, i) => row.classList.toggle("chosen", i === state.method && methods.length > 1));
  }

  // ---- Certificate ------------------------------------------------------------------------------------------

  // More than was promised breaks no promise: ties and filled sets cover more, and so may shifted rows.
  const verdictOf = (now) => (now.coverage < now.band[0] ? "NOT compatible with" : now.coverage > now.band[1] ? "MORE than" : "compatible with");

  function certificateLines(method, now) {
    const law = method.law;
    const p = state.position;
    const rank = law.rank.values[p];
    const n = law.n.values[p];
    const l = n + 1 - rank;
    const lines = [
      ["coverage asked for", coverageText(asked()), asked()],
      [law.group === null ? "calibration rows n" : "smallest group", law.group === null ? whole(n) : `${law.group[p]}: ${plural(n, "calibration row", "calibration rows")} of ${whole(method.n)}; the lines below are for it`, n],
      ["expected coverage", `${fixed(rank / (n + 1), 6)} over calibration sets`, rank / (n + 1)],
      [`${confidence} interval`, l ? `${fixed(law.low.values[p], 4)} to ${fixed(law.high.values[p], 4)} (Beta law of coverage given the calibration set)` : "–", law.low.values[p]],
      ["gamma", l ? `${fixed((n - l) / (n + 1), 6)} (belief mass of coverage, Theorem 2; not a statistical confidence)` : "–", (n - l) / (n + 1)],
      ["U_C", `${(2 / (n + 1)).toPrecision(2)} (Theorem 2: 2 / (n + 1))`, 2 / (n + 1)],
      ["observed coverage", `${fixed(now.coverage, 4)} on ${whole(data.m)} rows${now.band ? `: ${verdictOf(now)} ${fixed(now.band[0], 4)} to ${fixed(now.band[1], 4)}` : ", all groups together"}`, now.coverage],
    ];
    if (method.threshold) {
      const threshold = method.threshold.values[p];
      const place = threshold === Infinity ? "infinite: more rows are needed for this coverage" : `${+threshold.toPrecision(6)} (score ${whole(rank)} of ${whole(n)} in ascending order)`;
      lines.splice(2, 0, [method.score === "ecp" ? "threshold (ln score)" : "threshold", place, threshold]);
    }
    if (data.rows_needed) lines.push([law.group === null ? "n needed for ± 1 %" : "n needed for ± 1 % in a group", neededText(data.rows_needed.values[p]), data.rows_needed.values[p]]);
    return lines;
  }

  function neededText(rows) {
    return `${plural(rows, "calibration row", "calibration rows")}, so that ${confidence} of calibrations cover within 0.01 of it`;
  }

  function renderCertificate(now) {
    const method = current();
    $("section-certificate").hidden = $("figure-law").hidden = !method.law;
    $("assumption").textContent = method.caveat || "";
    if (!method.law) return;
    const lines = certificateLines(method, now);
    lines.push(["score", method.described || method.name], ["classes", whole(data.n_classes), data.n_classes]);
    if (method.by) lines.push(["a threshold for each", method.by]);
    if (method.checksum) lines.push(["checksum", method.checksum]);
    lines.push(["made by", `evicp ${data.version}, ${data.date}`]);
    const rows = fillTable("table-certificate", ["", ""], lines.map(([name, text]) => [name, text]), "");
    $("table-certificate").querySelector("thead").remove();
    rows.forEach((row, i) => { if (lines[i][2] !== undefined) row.lastChild.dataset.value = String(lines[i][2]); });
  }

  // ---- Classes ----------------------------------------------------------------------------------------------

  const classStarts = (() => {
    let sum = 0;
    return Array.from(data.classes.counts.values, (count) => { const start = sum; sum += count; return start; });
  })();

  function coveredInClass(method, label) {
    // Entry positions ascend within a class: count those at or before the slider.
    const { values } = method.first;
    let low = classStarts[label];
    let high = low + data.classes.counts.values[label];
    const start = low;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (values[middle] <= state.position) low = middle + 1; else high = middle;
    }
    return low - start;
  }

  function classRows() {
    const { sizes, starts, low, high } = data.classes.intervals;
    const rows = [];
    data.classes.counts.values.forEach((count, label) => {
      if (!count) return;
      const hits = coveredInClass(current(), label);
      const index = starts[sizes.indexOf(count)] + hits;
      rows.push({ label, name: className(label), count, hits, coverage: hits / count, low: low.values[index], high: high.values[index] });
    });
    return rows;
  }

  const CLASS_COLUMNS = [["name", "class"], ["count", "rows"], ["hits", "covered"], ["coverage", "coverage"], ["high", `${confidence} interval`]];

  function sortClasses(rows) {
    const key = state.sort;
    const order = (a, b) => (key === "name" ? a.name.localeCompare(b.name) : a[key] - b[key]);
    // Ties: the class with more rows says more; then the class's number, so that the order is always the same.
    return rows.sort((a, b) => (state.down ? -1 : 1) * order(a, b) || b.count - a.count || a.label - b.label);
  }

  function renderClasses() {
    const all = classRows();
    const gap = all.reduce((sum, row) => sum + Math.abs(row.coverage - asked()), 0) / all.length;
    const below = all.filter((row) => row.high < asked()).length;
    const chance = data.classes.below_by_chance.values[state.position];
    $("classes-aside").textContent = `${plural(all.length, "class", "classes")} with test rows; mean distance from the coverage asked for ${fixed(gap, 3)}. ` +
      `For ${whole(below)} of ${whole(all.length)} the whole interval lies below it; chance alone would give about ${+chance.toFixed(chance < 0.95 ? 1 : 0)}. A class with few rows says little.`;
    const wanted = state.find.toLocaleLowerCase();
    const found = sortClasses(all.filter((row) => `${row.label} ${row.name}`.toLocaleLowerCase().includes(wanted)));
    const pages = Math.max(1, Math.ceil(found.length / PAGE));
    state.page = Math.min(state.page, pages - 1);
    const first = state.page * PAGE;
    const cells = found.slice(first, first + PAGE);
    const rows = fillTable("table-classes", CLASS_COLUMNS.map(([, title]) => title), cells.map((row) => [
      data.classes.names ? `${row.name} (${row.label})` : row.name, whole(row.count), whole(row.hits), fixed(row.coverage, 3), `${fixed(row.low, 3)} to ${fixed(row.high, 3)}`,
    ]));
    rows.forEach((row, i) => {
      row.dataset.label = cells[i].label;
      row.classList.toggle("below", cells[i].high < asked());
    });
    sortableHead();
    $("classes-count").textContent = found.length ? `${whole(first + 1)} to ${whole(first + cells.length)} of ${whole(found.length)}` : "no class found";
    $("classes-back").disabled = state.page === 0;
    $("classes-on").disabled = state.page >= pages - 1;
  }

  function sortableHead() {
    [...$("table-classes").querySelectorAll("thead th")].forEach((cell, i) => {
      const [key, title] = CLASS_COLUMNS[i];
      const button = element("button", title, { type: "button", class: "sort" });
      button.addEventListener("click", () => {
        state.down = state.sort === key ? !state.down : false;
        state.sort = key;
        state.page = 0;
        renderClasses();
        $("table-classes").querySelectorAll("button.sort")[i].focus();
      });
      if (state.sort === key) cell.setAttribute("aria-sort", state.down ? "descending" : "ascending");
      cell.replaceChildren(button);
    });
  }

  // ---- Single rows ------------------------------------------------------------------------------------------

  const explorer = data.explorer;

  function rowFacts(index) {
    const listed = explorer.labels.shape[1];
    const truth = explorer.truth.values[index];
    const labels = Array.from({ length: listed }, (_, i) => ({
      column: i,
      label: explorer.labels.at(index, i),
      place: explorer.places.at(index, i),
      entry: explorer.entries.at(state.method, index, i),
      score: explorer.scores.at(state.method, index, i),
    })).map((item) => ({ ...item, inside: item.entry <= state.position, truth: item.label === truth }));
    labels.sort((a, b) => a.score - b.score || a.place - b.place);
    return { index, truth, labels, size: explorer.sizes.at(state.method, index, state.position), covered: labels.some((item) => item.truth && item.inside) };
  }

  function rowList() {
    const rows = Array.from(explorer.rows.values, (_, index) => rowFacts(index));
    const keep = { all: () => true, missed: (row) => !row.covered, large: () => true, single: (row) => row.size === 1 }[state.filter];
    const kept = rows.filter(keep);
    return state.filter === "large" ? kept.sort((a, b) => b.size - a.size || a.index - b.index) : kept;
  }

  function renderRows() {
    if (!explorer) return;
    const rows = rowList();
    if (rows.length && !rows.some((row) => row.index === state.row)) state.row = rows[0].index;
    $("row").replaceChildren(...rows.map((row) => {
      const text = `${explorer.rows.values[row.index]}: ${className(row.truth)}, ${plural(row.size, "label", "labels")}${row.covered ? "" : ", missed"}`;
      return element("option", text, { value: row.index });
    }));
    $("row").value = String(state.row);
    const place = rows.findIndex((row) => row.index === state.row);
    $("row-back").disabled = place <= 0;
    $("row-on").disabled = place < 0 || place >= rows.length - 1;
    if (rows.length) renderRow(rows[place]);
    else {
      $("row-verdict").textContent = "No such row at this coverage.";
      $("row-why").textContent = "";
      $("table-row").replaceChildren();
    }
  }

  const INGREDIENTS = ["evidence", "belief", "probability", "utility"];
  const titleOf = (part) => (part === "probability" ? "Dirichlet p" : part);

  function rowLine(row, item, largest) {
    const line = element("tr", null, { class: item.inside ? "in" : "out" });
    const name = element("th", `${item.place + 1}. ${className(item.label)}`, { scope: "row" });
    if (item.truth) name.append(element("span", "true label", { class: "truth" }));
    line.append(name);
    INGREDIENTS.forEach((part) => {
      const value = explorer.ingredients[part].at(row.index, item.column);
      line.append(meterCell(titleOf(part), short(value), largest[part] > 0 ? value / largest[part] : 0));
    });
    const [low, high] = largest.score;
    const share = Number.isFinite(item.score) ? (high > low ? (item.score - low) / (high - low) : 0) : 1;
    line.append(meterCell(costName(), Number.isFinite(item.score) ? fixed(item.score, 3) : "impossible", share));
    return line;
  }

  const costName = () => (current().score === "ecp" ? "cost (ln S)" : `${current().score || "score"}`);

  function meterCell(name, text, share) {
    const cell = element("td", null, { "data-name": name });
    const meter = element("span", text, { class: "meter" });
    meter.style.setProperty("--share", `${Math.max(0, Math.min(1, share)) * 100}%`);
    cell.append(meter);
    return cell;
  }

  function wideLine(kind, text) {
    const line = element("tr", null, { class: kind });
    line.append(element("td", text, { colspan: INGREDIENTS.length + 2 }));
    return line;
  }

  function chooseLines(row) {
    const inside = row.labels.filter((item) => item.inside);
    const outside = row.labels.filter((item) => !item.inside);
    const hidden = inside.length > 10 ? inside.slice(8, -1) : [];
    const within = hidden.find((item) => item.truth);
    const shown = hidden.length ? [...inside.slice(0, 8), ...(within ? [within] : []), null, inside[inside.length - 1]] : inside;
    const next = outside.slice(0, 3);
    const truth = outside.find((item) => item.truth);
    return { inside, outside, shown, hidden: hidden.length - (within ? 1 : 0), next: truth && !next.includes(truth) ? [...next, null, truth] : next };
  }

  function renderRow(row) {
    const { inside, outside, shown, hidden, next } = chooseLines(row);
    const visible = [...shown, ...next].filter(Boolean);
    const largest = Object.fromEntries(INGREDIENTS.map((part) => [part, Math.max(...visible.map((item) => explorer.ingredients[part].at(row.index, item.column)))]));
    const scores = visible.map((item) => item.score).filter(Number.isFinite);
    largest.score = [Math.min(...scores), Math.max(...scores)];
    const top = element("thead");
    const line = element("tr");
    ["label", ...INGREDIENTS.map(titleOf), costName()].forEach((title) => line.append(element("th", title, { scope: "col" })));
    top.append(line);
    const body = element("tbody");
    const beyond = row.size - inside.length;
    shown.forEach((item) => body.append(item ? rowLine(row, item, largest) : wideLine("gap", `… ${plural(hidden, "more label", "more labels")} …`)));
    if (beyond > 0) body.append(wideLine("gap", `… and ${plural(beyond, "label", "labels")} further down …`));
    const limit = current().by ? `each ${current().by} has a threshold of its own` : `threshold ${thresholdText()}`;
    body.append(wideLine("limit", `${limit}: the set ends here, with ${plural(row.size, "label", "labels")}`));
    if (!beyond) next.forEach((item) => body.append(item ? rowLine(row, item, largest) : wideLine("gap", "…")));
    $("table-row").replaceChildren(top, body);
    $("row-verdict").textContent = `Row ${explorer.rows.values[row.index]}: the true label, ${className(row.truth)}, is ${row.covered ? "in" : "missing from"} the set of ${plural(row.size, "label", "labels")}. Uncertainty u ${fixed(explorer.uncertainty.values[row.index], 3)}.`;
    $("row-why").textContent = why(row, inside, outside, beyond);
  }

  function thresholdText() {
    const threshold = current().threshold.values[state.position];
    return threshold === Infinity ? "infinite" : +threshold.toPrecision(5);
  }

  function why(row, inside, outside, beyond) {
    const parts = [];
    const lastIn = inside[inside.length - 1];
    const nextOut = beyond > 0 ? undefined : outside[0];
    if (lastIn && !beyond) parts.push(`${className(lastIn.label)} is the last label in: its score ${fixed(lastIn.score, 3)} is at most ${current().by ? "its threshold" : `the threshold ${thresholdText()}`}.`);
    if (nextOut) parts.push(`${className(nextOut.label)} is the first one out: its score is ${fixed(nextOut.score, 3)}; it enters ${entersAt(nextOut)}.`);
    if (lastIn && nextOut) parts.push(`Against the last one in it has ${ratio(row, "probability", nextOut, lastIn)} times the Dirichlet p and ${ratio(row, "utility", nextOut, lastIn)} times the utility.`);
    const truth = outside.find((item) => item.truth);
    if (truth && truth !== nextOut) parts.push(`The true label, at place ${truth.place + 1}, enters ${entersAt(truth)}.`);
    return parts.join(" ");
  }

  const entersAt = (item) => (item.entry > last ? "at no coverage of this slider" : `at coverage ${fixed(data.grid[item.entry], 3)}`);

  function ratio(row, part, one, other) {
    return short(explorer.ingredients[part].at(row.index, one.column) / explorer.ingredients[part].at(row.index, other.column));
  }

  // ---- Charts -----------------------------------------------------------------------------------------------

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"];
  // Plotly reads some markup in labels: escape what comes from outside.
  const safe = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

  function layout(extra) {
    const axis = { gridcolor: colour("grid"), linecolor: colour("line"), zeroline: false, fixedrange: true, automargin: true, ticks: "", title: { standoff: 8 } };
    const { xaxis = {}, yaxis = {}, ...rest } = extra;
    return {
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: colour("soft") },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false, dragmode: false,
      margin: { l: 52, r: 16, t: 12, b: 44 }, hoverlabel: { bgcolor: colour("panel"), bordercolor: colour("line"), font: { color: colour("ink") } },
      xaxis: { ...axis, ...xaxis }, yaxis: { ...axis, ...yaxis }, ...rest,
    };
  }

  function draw(id, traces, extra, label) {
    $(id).setAttribute("aria-label", label);
    return Plotly.react(id, traces, layout(extra), { displayModeBar: false, responsive: true });
  }

  const vertical = (x, name) => ({ type: "line", x0: x, x1: x, yref: "paper", y0: 0, y1: 1, line: { color: colour(name), width: 1, dash: "dot" } });
  const horizontal = (y, name) => ({ type: "line", xref: "paper", x0: 0, x1: 1, y0: y, y1: y, line: { color: colour(name), width: 1.5, dash: "dash" } });
  const points = (values) => Array.from(values, (hits, p) => 100 * (hits / data.m - data.grid[p]));

  // Coverages are drawn by how many rows they leave out, 1 - c, in factors: most happens close to 1.
  const stretch = (c) => -Math.log10(1 - c);
  const across = data.grid.map(stretch);
  const coverageAxis = () => {
    const wanted = narrow() ? [0.5, 0.8, 0.9, 0.99, 0.999] : [0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999];
    return { title: { text: "coverage asked for" }, automargin: false, tickangle: 0, range: [across[0] - 0.03, across[last] + 0.05], tickvals: wanted.map(stretch), ticktext: wanted.map(String) };
  };

  function drawCoverage() {
    if (data.grid.length < 2) return;
    const method = current();
    const traces = [];
    if (method.law && method.law.observed_low) {
      const off = (values) => Array.from(values, (value, p) => 100 * (value - data.grid[p]));
      traces.push({ x: across, y: off(method.law.observed_low.values), mode: "lines", line: { width: 0 }, hoverinfo: "skip" });
      traces.push({ x: across, y: off(method.law.observed_high.values), mode: "lines", line: { width: 0 }, fill: "tonexty", fillcolor: colour("accent-soft"), hoverinfo: "skip" });
    }
    const y = points(method.coverage.hits.values);
    traces.push({ x: across, y, customdata: data.grid, mode: "lines", line: { color: colour("accent"), width: 2 }, hovertemplate: "asked %{customdata:.3f}: %{y:+.2f} points<extra></extra>" });
    traces.push({ x: [stretch(asked())], y: [y[state.position]], mode: "markers", marker: { color: colour("accent"), size: 10 }, hoverinfo: "skip" });
    const label = { x: stretch(asked()), y: y[state.position], text: `<b>${signed(y[state.position])}</b>`, showarrow: false, yshift: y[state.position] >= 0 ? 16 : -16, font: { color: colour("ink"), size: 13 }, bgcolor: colour("paper"), borderpad: 1 };
    draw("chart-coverage", traces, {
      shapes: [horizontal(0, "soft"), vertical(stretch(asked()), "other")], annotations: [label],
      xaxis: coverageAxis(), yaxis: { title: { text: "observed − asked, points" } },
    }, `Observed minus asked coverage: ${signed(y[state.position])} percentage points at ${coverageText(asked())}.`);
    fillTable("table-coverage", ["asked", "observed", "from", "to"], stops().map((p) => {
      const now = stats(method, p);
      return [coverageText(data.grid[p]), fixed(now.coverage, 4), ...(now.band ? now.band.map((end) => fixed(end, 4)) : ["–", "–"])];
    }));
  }

  // The rows of tables that stand for curves.
  function stops() {
    const wanted = [0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.975, 0.99, 0.999].map((c) => data.grid.findIndex((value) => Math.abs(value - c) < 1e-9));
    return [...new Set([...wanted.filter((p) => p >= 0), state.position])].sort((a, b) => a - b);
  }

  function spread(labels, least) {
    // Labels at the right edge, moved apart just enough to be readable; y in pixels from the bottom.
    labels.sort((a, b) => a.y - b.y);
    for (let i = 1; i < labels.length; i += 1) labels[i].y = Math.max(labels[i].y, labels[i - 1].y + least);
    const over = labels.length ? labels[labels.length - 1].y - labels[labels.length - 1].ceiling : 0;
    if (over > 0) for (let i = labels.length - 1; i >= 0; i -= 1) labels[i].y = Math.min(labels[i].y, labels[i].ceiling - (labels.length - 1 - i) * least);
    return labels;
  }

  function drawSizes() {
    if (data.grid.length < 2) return;
    const order = methods.map((_, i) => i).sort((a, b) => (a === state.method) - (b === state.method));
    const sizes = methods.map((method) => Array.from(method.total_size.values, (sum) => sum / data.m));
    const positive = sizes.flat().filter((value) => value > 0);
    const [low, high] = [Math.log10(Math.min(...positive)) - 0.08, Math.log10(Math.max(...positive)) + 0.08];
    const traces = order.map((i) => ({
      x: across, y: sizes[i], customdata: data.grid, mode: "lines", name: safe(methods[i].name),
      line: { color: lineColour(i), width: i === state.method ? 3 : 1.5, dash: DASHES[i % DASHES.length] },
      hovertemplate: `${safe(methods[i].name)} at %{customdata:.3f}: %{y:.2f} labels<extra></extra>`,
    }));
    traces.push({ x: [stretch(asked())], y: [sizes[state.method][state.position]], mode: "markers", marker: { color: lineColour(state.method), size: 10 }, hoverinfo: "skip" });
    const height = $("chart-size").clientHeight - 56;
    const ends = spread(methods.map((method, i) => {
      const y = ((Math.log10(sizes[i][last]) - low) / (high - low)) * height;
      return { i, y, ceiling: height - 4 };
    }), 15);
    const room = Math.min(Math.max(...methods.map((method) => textWidth(method.name))), (narrow() ? 0.22 : 0.33) * $("chart-size").clientWidth);
    const annotations = ends.map(({ i, y }) => ({
      xref: "paper", x: 1, xanchor: "left", xshift: 4, yref: "paper", yanchor: "middle", y: y / height, text: safe(shortened(methods[i].name, room)), showarrow: false,
      font: { color: lineColour(i), size: 12 }, hovertext: safe(methods[i].name),
    }));
    // Names that do not fit beside their lines stand in full below the chart.
    const cut = methods.some((method) => textWidth(method.name) > room);
    $("names-size").replaceChildren(...(cut ? methods : []).map((method, i) => {
      const name = element("span", method.name);
      name.style.color = lineColour(i);
      return name;
    }));
    annotations.push({ x: stretch(asked()), y: Math.log10(sizes[state.method][state.position] || 1), text: `<b>${sizeText(sizes[state.method][state.position])}</b>`, showarrow: false, xshift: -6, yshift: 14, xanchor: "right", font: { color: colour("ink"), size: 13 }, bgcolor: colour("paper"), borderpad: 1 });
    draw("chart-size", traces, {
      shapes: [vertical(stretch(asked()), "other")], annotations, margin: { l: 52, r: room + 14, t: 12, b: 44 }, xaxis: coverageAxis(),
      yaxis: { title: { text: "mean set size" }, type: "log", range: [low, high], tickvals: ticks(low, high), ticktext: ticks(low, high).map(String) },
    }, `Mean set size: ${sizeText(sizes[state.method][state.position])} at coverage ${coverageText(asked())}.`);
    fillTable("table-size", ["asked", ...methods.map((method) => method.name)], stops().map((p) => [coverageText(data.grid[p]), ...sizes.map((values) => sizeText(values[p]))]));
  }

  const narrow = () => innerWidth < 600;
  const lineColour = (i) => colour(i === 0 ? "accent" : `line-${((i - 1) % 5) + 1}`);
  const pen = document.createElement("canvas").getContext("2d");
  const textWidth = (text) => {
    pen.font = `12px ${getComputedStyle(document.body).fontFamily}`;
    return pen.measureText(text).width;
  };
  const shortened = (name, room) => {
    const letters = [...name];
    if (textWidth(name) <= room) return name;
    while (letters.length > 1 && textWidth(`${letters.join("")}…`) > room) letters.pop();
    return `${letters.join("")}…`;
  };
  // The last range ends at K: "101+" says it in less room.
  const compact = (ranges) => ranges.map((range, i) => (i === ranges.length - 1 && range.includes("-") ? `${range.split("-")[0]}+` : range));

  function ticks(low, high) {
    const values = [];
    for (let power = Math.floor(low); power <= Math.ceil(high); power += 1) (high - low < 2 ? [1, 2, 5] : [1]).forEach((step) => values.push(+(step * 10 ** power).toPrecision(1)));
    return values.filter((value) => Math.log10(value) >= low && Math.log10(value) <= high);
  }

  function drawHistogram() {
    const method = current();
    $("figure-histogram").hidden = !method.bins;
    if (!method.bins) return;
    const shares = data.bins.map((_, i) => (100 * method.bins.at(state.position, i)) / data.m);
    const text = shares.map((share) => (share >= 0.05 ? share.toFixed(share < 9.95 ? 1 : 0) : ""));
    draw("chart-histogram", [{
      type: "bar", x: compact(data.bins), y: shares, text, textposition: "outside", cliponaxis: false, textfont: { size: 11, color: colour("ink") }, textangle: 0,
      marker: { color: colour("accent") }, hovertemplate: "size %{x}: %{y:.2f} % of rows<extra></extra>",
    }], {
      bargap: 0.25, xaxis: { type: "category", title: { text: "labels in the set" }, showgrid: false, tickangle: data.bins.length > 11 ? (narrow() ? -90 : -45) : 0 },
      yaxis: { title: { text: "% of rows" }, range: [0, Math.max(...shares) * 1.15] },
    }, `Set sizes: ${percent(stats(method, state.position).singletons)} of rows have one label.`);
    fillTable("table-histogram", ["size", "rows", "share"], data.bins.map((bin, i) => [bin, whole(method.bins.at(state.position, i)), percent(shares[i] / 100, 2)]));
  }

  function drawStrata() {
    const method = current();
    const { hits, counts, low, high } = method.strata;
    const rows = compact(data.strata).map((range, i) => ({
      range, count: counts.at(state.position, i), hits: hits.at(state.position, i), low: low.at(state.position, i), high: high.at(state.position, i),
    })).map((row) => ({ ...row, coverage: row.count ? row.hits / row.count : null }));
    const used = rows.filter((row) => row.count);
    const place = (row) => `${row.range}<br>${whole(row.count)}`;
    // On paper of their own: the line of the coverage asked for must not strike them through.
    const annotations = used.map((row) => ({ x: place(row), y: row.coverage, text: row.coverage.toFixed(3), showarrow: false, xanchor: "left", xshift: 6, yshift: 12, font: { size: narrow() ? 10 : 11, color: colour("ink") }, bgcolor: colour("paper"), borderpad: 1 }));
    draw("chart-strata", [{
      type: "scatter", mode: "markers", x: used.map(place), y: used.map((row) => row.coverage), cliponaxis: false, marker: { size: 9, color: colour("accent") },
      error_y: { type: "data", symmetric: false, array: used.map((row) => row.high - row.coverage), arrayminus: used.map((row) => row.coverage - row.low), color: colour("accent"), thickness: 1.5, width: 4 },
      hovertemplate: "%{y:.4f}<extra></extra>",
    }], {
      shapes: [horizontal(asked(), "soft")], annotations, margin: { l: 52, r: 40, t: 12, b: 56 },
      xaxis: { type: "category", title: { text: "labels in the set, and rows", standoff: 4 }, showgrid: false, categoryorder: "array", categoryarray: rows.map(place), range: [-0.5, rows.length - 0.5], tickvals: rows.map(place), tickangle: 0, tickfont: { size: narrow() ? 10 : 12 } },
      yaxis: { title: { text: "coverage" }, range: [Math.max(-0.02, Math.min(asked(), ...used.map((row) => row.low)) - 0.03), 1.07], tickvals: [0, 0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 1] },
    }, `Coverage by set size: ${used.map((row) => `${row.range}: ${row.coverage.toFixed(3)} of ${row.count} rows`).join("; ")}.`);
    fillTable("table-strata", ["size", "rows", "covered", "coverage", "from", "to"], rows.map((row) => [row.range, whole(row.count), whole(row.hits), fixed(row.coverage, 4), fixed(row.low, 4), fixed(row.high, 4)]));
  }

  function drawDifficulty() {
    $("figure-difficulty").hidden = !data.difficulty;
    if (!data.difficulty) return;
    const method = current();
    const rows = compact(data.difficulty.labels).map((range, i) => {
      const count = data.difficulty.counts[i];
      return { range, count, size: count ? method.difficulty_sizes.at(state.position, i) / count : null, coverage: count ? method.difficulty_hits.at(state.position, i) / count : null };
    });
    const used = rows.filter((row) => row.count);
    draw("chart-difficulty", [{
      type: "bar", x: used.map((row) => `${row.range}<br>${whole(row.count)}`), y: used.map((row) => row.size), text: used.map((row) => sizeText(row.size)),
      textposition: "outside", cliponaxis: false, textfont: { size: 11, color: colour("ink") }, textangle: 0, marker: { color: colour("accent") }, hovertemplate: "%{y:.2f} labels<extra></extra>",
    }], {
      bargap: 0.45, margin: { l: 52, r: 16, t: 12, b: 56 }, xaxis: { type: "category", title: { text: "rank of the true label, and rows", standoff: 4 }, showgrid: false, tickangle: 0, tickfont: { size: narrow() ? 10 : 12 } },
      yaxis: { title: { text: "mean set size" }, range: [0, Math.max(0.1, ...used.map((row) => row.size)) * 1.15] },
    }, `Mean set size by difficulty: ${used.map((row) => `${row.range}: ${sizeText(row.size)}`).join("; ")}.`);
    fillTable("table-difficulty", ["rank", "rows", "mean size", "coverage"], rows.map((row) => [row.range, whole(row.count), row.size === null ? "–" : sizeText(row.size), fixed(row.coverage, 4)]));
  }

  function logGamma(x) {
    // Stirling's series, shifted to where it is accurate; for the picture of a density only.
    let shift = 0;
    let y = x;
    while (y < 10) { shift -= Math.log(y); y += 1; }
    return shift + (y - 0.5) * Math.log(y) - y + 0.5 * Math.log(2 * Math.PI) + 1 / (12 * y) - 1 / (360 * y ** 3) + 1 / (1260 * y ** 5);
  }

  function drawLaw(now) {
    const method = current();
    if (!method.law) return;
    const a = method.law.rank.values[state.position];
    const n = method.law.n.values[state.position];
    const b = n + 1 - a;
    const [low, high] = [method.law.low.values[state.position], method.law.high.values[state.position]];
    const marks = [["asked", asked(), "soft"], [method.by ? "observed, all" : "observed", now.coverage, "ink"]];
    fillTable("table-law", ["", "coverage"], [["asked for", coverageText(asked())], ["expected", fixed(a / (n + 1), 4)], [`${confidence} from`, fixed(low, 4)], [`${confidence} to`, fixed(high, 4)], ["observed", fixed(now.coverage, 4)]]);
    const reach = Math.max(high - low, 1e-4);
    const from = Math.max(0, Math.min(low - 0.6 * reach, now.coverage - 0.1 * reach));
    const to = Math.min(1, Math.max(high + 0.6 * reach, now.coverage + 0.1 * reach));
    const constant = b ? logGamma(a + b) - logGamma(a) - logGamma(b) : 0;
    const density = (x) => (b ? Math.exp(constant + (a - 1) * Math.log(x) + (b - 1) * Math.log1p(-x)) : 0);
    const line = (start, stop) => Array.from({ length: 161 }, (_, i) => start + ((stop - start) * i) / 160).map((x) => Math.min(Math.max(x, 1e-9), 1 - 1e-9));
    const [all, centre] = [line(from, to), line(Math.max(low, from), Math.min(high, to))];
    // A mark's name stands on the outer side of its line, or on the other where it would be cut off; below, where two meet.
    const width = $("chart-law").clientWidth;
    const places = marks.map(([, x]) => 20 + ((x - from) / (to - from)) * (width - 40));
    const rooms = marks.map(([text]) => textWidth(text) + 12);
    const outer = marks.map((_, i) => (i === 0) === (marks[0][1] <= marks[1][1]));
    const before = marks.map((_, i) => (outer[i] ? places[i] >= rooms[i] : places[i] > width - rooms[i]));
    const starts = marks.map((_, i) => (before[i] ? places[i] - rooms[i] : places[i]));
    const meet = starts[0] < starts[1] + rooms[1] && starts[1] < starts[0] + rooms[0];
    draw("chart-law", [
      { x: centre, y: centre.map(density), mode: "lines", line: { width: 0 }, fill: "tozeroy", fillcolor: colour("accent-soft"), hoverinfo: "skip" },
      { x: all, y: all.map(density), mode: "lines", line: { color: colour("accent"), width: 2 }, hoverinfo: "skip" },
    ], {
      shapes: marks.map(([, x, name]) => ({ ...vertical(x, name), line: { color: colour(name), width: name === "ink" ? 2 : 1.5, dash: name === "ink" ? "solid" : "dash" } })),
      annotations: marks.map(([text, x, name], i) => ({ x, yref: "paper", y: 1, yanchor: "top", yshift: i && meet ? -36 : 0, xanchor: before[i] ? "right" : "left", xshift: before[i] ? -5 : 5, text: `${text}<br>${fixed(x, 4)}`, align: before[i] ? "right" : "left", showarrow: false, font: { color: colour(name), size: 12 } })),
      margin: { l: 20, r: 20, t: 12, b: 44 }, xaxis: { title: { text: b ? "coverage over calibration sets" : "coverage is 1: every set is full" }, range: [from, to], tickformat: ".3~f" },
      yaxis: { showticklabels: false, showgrid: false, range: [0, b ? density((a - 1) / Math.max(1, a + b - 2)) * 1.3 : 1] },
    }, `Beta law of coverage: ${confidence} between ${fixed(low, 4)} and ${fixed(high, 4)}; observed ${fixed(now.coverage, 4)}.`);
  }

  // ---- Everything together ----------------------------------------------------------------------------------

  let pending = 0;
  let later = 0;
  let chartsReady = false;
  const CHARTS = [
    ["chart-coverage", drawCoverage], ["chart-size", drawSizes], ["chart-histogram", drawHistogram],
    ["chart-strata", drawStrata], ["chart-difficulty", drawDifficulty], ["chart-law", drawLaw],
  ];

  // What is on the screen follows the slider at once; the rest is drawn after it, one chart at a time.
  function seen(id) {
    const box = $(id).getBoundingClientRect();
    return box.bottom > 0 && box.top < innerHeight;
  }

  function renderCharts() {
    if (!chartsReady) return;
    const now = stats(current(), state.position);
    const queue = CHARTS.map(([id, chart]) => [seen(id), chart]).sort((a, b) => b[0] - a[0]);
    const next = () => {
      const [, chart] = queue.shift();
      chart(now);
      if (!performance.getEntriesByName("evicp-first-chart").length) performance.mark("evicp-first-chart");
      if (!queue.length) document.documentElement.dataset.drawn = String(state.position);
      else if (queue[0][0]) next();
      else later = setTimeout(next);
    };
    clearTimeout(later);
    next();
  }

  function render() {
    const now = stats(current(), state.position);
    delete document.documentElement.dataset.drawn;
    renderTiles(now);
    renderMethods();
    renderCertificate(now);
    renderClasses();
    renderRows();
    cancelAnimationFrame(pending);
    pending = requestAnimationFrame(renderCharts);
  }

  function setCoverage(value) {
    const position = data.grid.reduce((best, coverage, p) => (Math.abs(coverage - value) < Math.abs(data.grid[best] - value) ? p : best), 0);
    state.position = position;
    $("coverage").value = $("coverage-number").value = String(data.grid[position]);
    $("coverage").setAttribute("aria-valuetext", coverageText(data.grid[position]));
    render();
  }

  function step(direction) {
    const rows = rowList();
    const place = rows.findIndex((row) => row.index === state.row) + direction;
    if (rows[place]) { state.row = rows[place].index; renderRows(); }
  }

  function setTheme(dark) {
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    $("theme").textContent = dark ? "Light" : "Dark";
    $("theme").setAttribute("aria-pressed", String(dark));
    $("theme").setAttribute("aria-label", dark ? "Switch to light colours" : "Switch to dark colours");
    renderCharts();
  }

  function connect() {
    const on = (id, event, action) => $(id).addEventListener(event, action);
    on("coverage", "input", (event) => setCoverage(Number(event.target.value)));
    on("coverage-number", "change", (event) => setCoverage(Number(event.target.value || asked())));
    on("method", "change", (event) => { state.method = Number(event.target.value); render(); });
    on("search", "input", (event) => { state.find = event.target.value; state.page = 0; renderClasses(); });
    on("classes-back", "click", () => { state.page -= 1; renderClasses(); });
    on("classes-on", "click", () => { state.page += 1; renderClasses(); });
    on("row-filter", "change", (event) => { state.filter = event.target.value; renderRows(); });
    on("row", "change", (event) => { state.row = Number(event.target.value); renderRows(); });
    on("row-back", "click", () => step(-1));
    on("row-on", "click", () => step(1));
    on("theme", "click", () => setTheme(document.documentElement.dataset.theme !== "dark"));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (event) => setTheme(event.matches));
    addEventListener("resize", () => { cancelAnimationFrame(pending); pending = requestAnimationFrame(renderCharts); });
    // The print stylesheet is light; the charts are drawn with the colours that hold while printing.
    matchMedia("print").addEventListener("change", renderCharts);
  }

  function prepare() {
    methods.forEach((method, i) => $("method").append(element("option", method.name, { value: i })));
    document.querySelectorAll(".confidence").forEach((node) => { node.textContent = confidence; });
    $("coverage-control").hidden = $("section-curves").hidden = data.grid.length < 2;
    $("section-rows").hidden = !explorer;
    if (explorer) $("rows-aside").textContent = `${plural(explorer.rows.values.length, "row", "rows")} of the ${whole(data.m)} tested, drawn at random, by their number in the test data. Bars compare the labels shown.`;
    $("coverage").min = $("coverage-number").min = data.grid[0];
    $("coverage").max = $("coverage-number").max = data.grid[last];
  }

  prepare();
  connect();
  setTheme(matchMedia("(prefers-color-scheme: dark)").matches);
  setCoverage(data.grid[data.start]);
  performance.mark("evicp-first-figure");
  const begin = () => {
    chartsReady = true;
    renderCharts();
    document.documentElement.dataset.ready = "true";
  };
  if (window.Plotly) begin(); else addEventListener("load", begin);
})();
