"use strict";
(async () => {
  // Everything that moves was counted in advance for each coverage of the slider; the page only looks it up.
  const TYPES = { f64: Float64Array, f32: Float32Array, u8: Uint8Array, u16: Uint16Array, u32: Uint32Array };
  const PAGE = 20;
  const { Chart, Tip, svg, textWidth, roundTicks, powerTicks } = Charts;
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
  const four = (value) => fixed(value, 4);
  // A number of a table: what is read there, and what its file holds.
  const of = (value, text) => ({ value, text: text(value) });
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

  const textOf = (cell) => (cell !== null && typeof cell === "object" ? cell.text : cell);
  const valueOf = (cell) => (cell !== null && typeof cell === "object" ? cell.value : cell);

  function headLine(titles) {
    const top = element("thead");
    const line = element("tr");
    titles.forEach((title) => line.append(termed(element("th", title, { scope: "col" }))));
    top.append(line);
    return top;
  }

  // Fills a table, and keeps its numbers for the file that a reader may download.
  function fillTable(id, head, rows) {
    const body = element("tbody");
    rows.forEach((cells) => {
      const row = element("tr");
      cells.forEach((cell, i) => row.append(i ? element("td", textOf(cell), { "data-name": head[i] }) : termed(element("th", textOf(cell), { scope: "row" }))));
      body.append(row);
    });
    $(id).replaceChildren(headLine(head), body);
    tables.set(id, [head, ...rows]);
    return [...body.children];
  }

  // ---- Tables as files ----------------------------------------------------------------------------------------

  const tables = new Map();

  // Text that a spreadsheet would take for a formula has an apostrophe before it.
  function csvCell(cell) {
    const value = valueOf(cell);
    if (value === null || value === undefined || Number.isNaN(value)) return "";
    const text = typeof value === "string" && /^(?:[\s']*[=+\-@]|'*[\t\r])/.test(value) ? `'${value}` : String(value);
    return /[,"\r\n]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
  }

  function download(id) {
    const lines = tables.get(id).map((cells) => `${cells.map(csvCell).join(",")}\n`);
    const name = `${document.title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "").slice(0, 60)}-${id.replace("table-", "")}.csv`;
    const link = element("a", "", { download: name, href: URL.createObjectURL(new Blob(lines, { type: "text/csv" })) });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  function prepareDownloads() {
    document.querySelectorAll("table[id]").forEach((table) => {
      const button = element("button", "CSV", { type: "button", class: "csv", "aria-label": `Download this table as a CSV file (${table.id.replace("table-", "")})` });
      button.addEventListener("click", () => download(table.id));
      table.closest(".scroll").after(button);
    });
  }

  // ---- Terms ------------------------------------------------------------------------------------------------

  const glossary = new Map([...document.querySelectorAll("#glossary dt")].map((term) => [term.textContent.toLowerCase(), term.nextElementSibling]));
  const meaning = (term) => glossary.get((term.dataset.term || term.textContent).toLowerCase());

  // A cell whose whole text is a term explains it.
  function termed(cell) {
    if (!glossary.has(cell.textContent.toLowerCase())) return cell;
    const term = asTerm(element("span", cell.textContent, { class: "term" }));
    cell.replaceChildren(term);
    return cell;
  }

  function asTerm(node) {
    node.tabIndex = 0;
    node.setAttribute("aria-describedby", meaning(node).id);
    return node;
  }

  function prepareTerms() {
    document.querySelectorAll(".term").forEach(asTerm);
    const explain = (event) => {
      const term = event.target.closest && event.target.closest(".term");
      if (!term) return;
      const { left, bottom } = term.getBoundingClientRect();
      Tip.show(meaning(term).textContent, left - 12, bottom - 8);
    };
    document.addEventListener("pointerover", explain);
    document.addEventListener("focusin", explain);
    ["pointerout", "focusout"].forEach((event) => document.addEventListener(event, (change) => { if (change.target.closest && change.target.closest(".term")) Tip.hide(); }));
    document.addEventListener("keydown", (event) => { if (event.key === "Escape") Tip.hide(); });
  }

  // ---- Provenance and contents --------------------------------------------------------------------------------

  const sizeOfFile = (bytes) => (bytes < 1e6 ? `${(bytes / 1e3).toFixed(1)} kB` : `${(bytes / 1e6).toFixed(1)} MB`);

  function renderProvenance() {
    const { files, versions, ...facts } = data.provenance;
    const named = Object.entries(versions).map(([name, version]) => `${name} ${version}`).join(", ");
    const lines = [["model", facts.model || "not given"], ["data set", facts.data_set || "not given"], ["author", facts.author], ["note", facts.note], ["date", facts.date], ["versions", named]];
    fillTable("table-provenance", ["", ""], lines.filter(([, text]) => text)).forEach((row) => row.classList.toggle("absent", row.lastChild.textContent === "not given"));
    $("table-provenance").tHead.remove();
    $("files").hidden = !files.length;
    fillTable("table-files", ["file", "size", "SHA-256"], files.map((file) => [file.name, of(file.bytes, sizeOfFile), file.sha256]));
  }

  function listContents() {
    const heads = [...document.querySelectorAll("main h2[id]:not(#t-next)")].filter((head) => head.checkVisibility());
    $("contents").replaceChildren(...heads.map((head) => element("a", head.textContent, { href: `#${head.id}` })));
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

  function guaranteeOf(method) {
    if (method.n === null) return "this score has no coverage guarantee";
    if (!method.by) return "no expected range is known for sets of this kind";
    return `the guarantee holds in every ${method.by === "uncertainty" ? "band of uncertainty" : method.by} separately`;
  }

  function renderTiles(now) {
    const method = current();
    const kept = now.band ? now.coverage >= now.band[0] : !method.verdict || method.verdict.kept;
    show("observed", now.coverage, fixed(now.coverage, 4));
    $("observed-aside").textContent = now.band
      ? `expected in ${confidence} of runs: ${fixed(now.band[0], 4)} to ${fixed(now.band[1], 4)}; dashed: target`
      : guaranteeOf(method);
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
      ? `${verdictOf(now)} the guarantee (${confidence} of runs give ${fixed(now.band[0], 4)} to ${fixed(now.band[1], 4)})`
      : guaranteeOf(method);
    const note = full ? ` ${plural(method.n, "calibration row is", "calibration rows are")} too few for this coverage, so every set is full.` : "";
    const found = method.verdict ? method.verdict.text : `${fixed(now.coverage, 4)} on ${plural(data.m, "row", "rows")}, ${verdict}`;
    sayLater(
      `${method.name} at coverage ${coverageText(asked())}: observed ${found}; ${sizeText(now.size)} labels per set on average.${note}`,
      !kept || full,
    );
    renderNext(full ? tooFew() : kept ? (now.band && now.coverage > now.band[1] ? tooMany() : []) : tooLow(method));
  }

  // What to do about a verdict that is not as it should be.
  const tooFew = () => [`Give at least ${whole(Math.ceil(asked() / (1 - asked()) - 1e-9))} calibration rows, or choose a lower coverage.`];

  const tooMany = () => [
    "The guarantee holds, but sets are larger than necessary. Filled empty sets and tied scores at the threshold both raise coverage.",
    "Are test rows easier than calibration rows? Compare the accuracy on both. Training rows are too easy.",
  ];

  const tooLow = (method) => [
    `Check that labels and logits belong together. Top-1 accuracy here is ${data.accuracy === null ? "not known" : percent(data.accuracy)}: if it is lower than expected, rows are shuffled, or classes are in another order.`,
    "Check that both sets of rows come from the same model, with the same preprocessing and the same temperature.",
    "Check that no calibration row was used for training, or to select the model, the score or the temperature.",
    "Compare the data: new devices, places, times, or other class frequencies. The tables by class and by set size show where coverage is low.",
    "Do not rely on this coverage until the cause is found. If future rows resemble the test rows, calibrate again on such rows" +
      `${data.rows_needed ? ` (${whole(data.rows_needed.values[state.position])} keep coverage within 0.01${method.n === null ? "" : `; this calibration used ${whole(method.n)}`})` : ""}.`,
  ];

  function renderNext(steps) {
    $("next").hidden = !steps.length;
    $("next-steps").replaceChildren(...steps.map((text) => element("li", text)));
  }

  let saying = 0;
  function sayLater(text, off) {
    // Screen readers hear the sentence once the slider rests; eyes see it at once in the tiles. The first is said at once.
    clearTimeout(saying);
    $("verdict").classList.toggle("off", Boolean(off));
    const say = () => { $("verdict").textContent = text; };
    if (saying) saying = setTimeout(say, 150);
    else { say(); saying = -1; }
  }

  function renderMethods() {
    const head = ["score", "coverage", "mean size", "SSCV", "rows for SSCV", "SAT", "single labels", "empty sets"];
    const rows = methods.map((method) => {
      const now = stats(method, state.position);
      return [method.n === null ? `${method.name} (not conformal)` : method.name, of(now.coverage, four), of(now.size, sizeText),
        of(now.sscv, (value) => fixed(value, 3)), of(now.sscvCount, whole), of(now.sat, (value) => fixed(value, 3)), of(now.singletons, percent), of(now.empty, percent)];
    });
    fillTable("table-methods", head, rows).forEach((row, i) => row.classList.toggle("chosen", i === state.method && methods.length > 1));
  }

  // ---- Certificate ------------------------------------------------------------------------------------------

  // More than the target breaks no guarantee: ties and filled sets cover more, and so may shifted rows.
  const verdictOf = (now) => (now.coverage < now.band[0] ? "NOT compatible with" : now.coverage > now.band[1] ? "MORE than" : "compatible with");

  function certificateLines(method, now) {
    const law = method.law;
    const p = state.position;
    const rank = law.rank.values[p];
    const n = law.n.values[p];
    const l = n + 1 - rank;
    const lines = [
      ["target coverage", coverageText(asked()), asked()],
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
    if (method.source) lines.push(["calibration rows from", method.source]);
    if (method.checksum) lines.push(["calibration file", `SHA-256 ${method.checksum} (of the saved calibration, as sha256sum gives it)`]);
    lines.push(["made by", `evicp ${data.version}, ${data.date}`]);
    const rows = fillTable("table-certificate", ["", ""], lines.map(([name, text]) => [name, text]));
    $("table-certificate").tHead.remove();
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

  // Of so few rows little can be said: such classes are grey and, where there are others, stand last.
  const FEW = 10;
  const isFew = (row) => row.count < FEW && row.high >= asked();

  function renderGroups() {
    const { groups } = data;
    $("section-groups").hidden = !groups;
    if (!groups) return;
    fillTable("table-groups", ["group", "rows", "covered", "coverage", "from", "to", "mean size"], groups.names.map((name, i) => {
      const [hits, count, low, high, size] = [groups.hits, groups.counts, groups.low, groups.high, groups.size].map(({ values }) => values[i]);
      return [name, of(count, whole), of(hits, whole), of(count ? hits / count : NaN, four), of(low, four), of(high, four), of(size, sizeText)];
    }));
  }

  function sortClasses(rows) {
    const key = state.sort;
    const order = (a, b) => (key === "name" ? a.name.localeCompare(b.name) : a[key] - b[key]);
    const last = key === "name" || key === "count" ? () => 0 : (a, b) => isFew(a) - isFew(b);
    // Ties: the class with more rows says more; then the class's number, so that the order is always the same.
    return rows.sort((a, b) => last(a, b) || (state.down ? -1 : 1) * order(a, b) || b.count - a.count || a.label - b.label);
  }

  const classCells = (row) => [
    data.classes.names ? `${row.name} (${row.label})` : row.name, of(row.count, whole), of(row.hits, whole), of(row.coverage, (value) => fixed(value, 3)), `${fixed(row.low, 3)} to ${fixed(row.high, 3)}`,
  ];

  function describeClasses(all) {
    const gap = all.reduce((sum, row) => sum + Math.abs(row.coverage - asked()), 0) / all.length;
    const below = all.filter((row) => row.high < asked()).length;
    const few = all.filter(isFew).length;
    const chance = data.classes.below_by_chance.values[state.position];
    $("classes-aside").textContent = `${plural(all.length, "class", "classes")} with test rows; mean distance from the target coverage ${fixed(gap, 3)}. ` +
      `For ${whole(below)} of ${whole(all.length)} the whole interval is below it; chance alone gives about ${+chance.toFixed(chance < 0.95 ? 1 : 0)}.` +
      (few ? ` ${plural(few, "class has", "classes have")} fewer than ${FEW} rows and an interval that contains the target: too few rows to judge; they are grey and last.` : "");
  }

  function renderClasses() {
    const all = classRows();
    describeClasses(all);
    const wanted = state.find.toLocaleLowerCase();
    const found = sortClasses(all.filter((row) => `${row.label} ${row.name}`.toLocaleLowerCase().includes(wanted)));
    const pages = Math.max(1, Math.ceil(found.length / PAGE));
    state.page = Math.min(state.page, pages - 1);
    const first = state.page * PAGE;
    const cells = found.slice(first, first + PAGE);
    const rows = fillTable("table-classes", CLASS_COLUMNS.map(([, title]) => title), cells.map(classCells));
    tables.set("table-classes", [["class", "name", "rows", "covered", "coverage", "from", "to"], ...found.map((row) => [row.label, row.name, row.count, row.hits, row.coverage, row.low, row.high])]);
    rows.forEach((row, i) => {
      row.dataset.label = cells[i].label;
      row.classList.toggle("below", cells[i].high < asked());
      row.classList.toggle("few", isFew(cells[i]));
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

  const rowName = (index) => (data.ids ? data.ids[index] : String(explorer.rows.values[index]));

  function renderRows() {
    if (!explorer) return;
    const rows = rowList();
    if (rows.length && !rows.some((row) => row.index === state.row)) state.row = rows[0].index;
    $("row").replaceChildren(...rows.map((row) => {
      const text = `${rowName(row.index)}: ${className(row.truth)}, ${plural(row.size, "label", "labels")}${row.covered ? "" : ", missed"}`;
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
    const titles = ["label", ...INGREDIENTS.map(titleOf), costName()];
    const body = element("tbody");
    const beyond = row.size - inside.length;
    shown.forEach((item) => body.append(item ? rowLine(row, item, largest) : wideLine("gap", `… ${plural(hidden, "more label", "more labels")} …`)));
    if (beyond > 0) body.append(wideLine("gap", `… and ${plural(beyond, "label", "labels")} further down …`));
    const limit = current().by ? `each ${current().by} has its own threshold` : `threshold ${thresholdText()}`;
    body.append(wideLine("limit", `${limit}: the set ends here, with ${plural(row.size, "label", "labels")}`));
    if (!beyond) next.forEach((item) => body.append(item ? rowLine(row, item, largest) : wideLine("gap", "…")));
    $("table-row").replaceChildren(headLine(titles), body);
    tables.set("table-row", [["place", "label", "name", "true label", "in the set", ...INGREDIENTS.map(titleOf), costName()], ...row.labels.map((item) => [
      item.place + 1, item.label, className(item.label), item.truth ? "yes" : "no", item.inside ? "yes" : "no", ...INGREDIENTS.map((part) => explorer.ingredients[part].at(row.index, item.column)), item.score,
    ])]);
    $("row-verdict").textContent = `Row ${rowName(row.index)}: the true label, ${className(row.truth)}, is ${row.covered ? "in" : "missing from"} the set of ${plural(row.size, "label", "labels")}. Uncertainty u ${fixed(explorer.uncertainty.values[row.index], 3)}.`;
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

  const DASHES = ["", "7 4", "2 3", "7 3 2 3", "11 4", "11 3 2 3"];
  const narrow = () => innerWidth < 600;
  const lineColour = (i) => (i === 0 ? "accent" : `line-${((i - 1) % 5) + 1}`);
  const chart = (id, options) => new Chart($(id), options);

  // Coverages are drawn by how many rows they leave out, 1 - c, in factors: most happens close to 1.
  const stretch = (c) => -Math.log10(1 - c);
  const across = data.grid.map(stretch);
  const coverageAxis = () => {
    const wanted = narrow() ? [0.5, 0.8, 0.9, 0.99, 0.999] : [0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999];
    return { title: "target coverage", range: [across[0] - 0.03, across[last] + 0.05], ticks: wanted.map((c) => [stretch(c), String(c)]) };
  };

  function drawCoverage() {
    if (data.grid.length < 2) return;
    const method = current();
    const off = (values, scale = 1) => Array.from(values, (value, p) => 100 * (value / scale - data.grid[p]));
    const y = off(method.coverage.hits.values, data.m);
    const law = method.law && method.law.observed_low ? method.law : null;
    const [lows, highs] = law ? [off(law.observed_low.values), off(law.observed_high.values)] : [y, y];
    const [low, high] = [Math.min(0, ...y, ...lows), Math.max(0, ...y, ...highs)];
    const range = [low - 0.06 * (high - low) - 1e-6, high + 0.06 * (high - low) + 1e-6];
    const here = y[state.position];
    const picture = chart("chart-coverage", {
      label: `Observed minus target coverage: ${signed(here)} percentage points at ${coverageText(asked())}.`,
      x: coverageAxis(), y: { title: "observed − target, points", range, ticks: roundTicks(range) },
    });
    if (law) picture.band(across, lows, highs, "accent-soft");
    picture.horizontal(0, "soft");
    picture.vertical(stretch(asked()), "other");
    picture.line(across, y, "accent");
    picture.dot(stretch(asked()), here, "accent");
    picture.note(signed(here), picture.across(stretch(asked())), picture.up(here) + (here >= 0 ? -10 : 20), { anchor: "middle" });
    picture.hover(across, (p) => `target ${coverageText(data.grid[p])}\nobserved ${fixed(data.grid[p] + y[p] / 100, 4)}, ${signed(y[p])} points`);
    fillTable("table-coverage", ["target", "observed", "from", "to"], stops().map((p) => {
      const now = stats(method, p);
      return [of(data.grid[p], coverageText), of(now.coverage, four), ...(now.band || [NaN, NaN]).map((end) => of(end, four))];
    }));
  }

  // The rows of tables that stand for curves.
  function stops() {
    const wanted = [0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.975, 0.99, 0.999].map((c) => data.grid.findIndex((value) => Math.abs(value - c) < 1e-9));
    return [...new Set([...wanted.filter((p) => p >= 0), state.position])].sort((a, b) => a - b);
  }

  const shortened = (name, room) => {
    const letters = [...name];
    if (textWidth(name) <= room) return name;
    while (letters.length > 1 && textWidth(`${letters.join("")}…`) > room) letters.pop();
    return `${letters.join("")}…`;
  };

  // Heights of labels at the right edge, moved apart just enough to be readable, and none below the floor.
  function spread(labels, least, floor) {
    labels.sort((a, b) => a.y - b.y);
    for (let i = 1; i < labels.length; i += 1) labels[i].y = Math.max(labels[i].y, labels[i - 1].y + least);
    labels.forEach((label, i) => { label.y = Math.min(label.y, floor - (labels.length - 1 - i) * least); });
    return labels;
  }

  function drawSizes() {
    if (data.grid.length < 2) return;
    const sizes = methods.map((method) => Array.from(method.total_size.values, (sum) => sum / data.m));
    const smallest = Math.min(...sizes.flat().filter((value) => value > 0));
    const logs = sizes.map((values) => values.map((value) => Math.log10(value || smallest)));
    const range = [Math.min(...logs.flat()) - 0.08, Math.max(...logs.flat()) + 0.08];
    const room = Math.min(Math.max(...methods.map((method) => textWidth(method.name))), (narrow() ? 0.22 : 0.33) * $("chart-size").clientWidth);
    const here = sizes[state.method][state.position];
    const picture = chart("chart-size", {
      label: `Mean set size: ${sizeText(here)} at coverage ${coverageText(asked())}.`,
      right: room + 16, x: coverageAxis(), y: { title: "mean set size", range, ticks: powerTicks(range) },
    });
    picture.vertical(stretch(asked()), "other");
    const order = methods.map((_, i) => i).sort((a, b) => (a === state.method) - (b === state.method));
    order.forEach((i) => picture.line(across, logs[i], lineColour(i), i === state.method ? 3 : 1.5, DASHES[i % DASHES.length]));
    picture.dot(stretch(asked()), logs[state.method][state.position], lineColour(state.method));
    picture.note(sizeText(here), picture.across(stretch(asked())) - 6, picture.up(logs[state.method][state.position]) - 10, { anchor: "end" });
    spread(methods.map((_, i) => ({ i, y: picture.up(logs[i][last]) })), 15, picture.height - picture.bottom).forEach(({ i, y }) => {
      picture.write(shortened(methods[i].name, room), picture.width - picture.right + 6, y + 4, { colour: lineColour(i), kind: "end" });
    });
    // Names that do not fit beside their lines stand in full below the chart.
    const cut = methods.some((method) => textWidth(method.name) > room);
    $("names-size").replaceChildren(...(cut ? methods : []).map((method, i) => element("span", method.name, { style: `color: var(--${lineColour(i)})` })));
    picture.hover(across, (p) => `target ${coverageText(data.grid[p])}\n${methods.map((method, i) => `${method.name}: ${sizeText(sizes[i][p])}`).join("\n")}`);
    fillTable("table-size", ["target", ...methods.map((method) => method.name)], stops().map((p) => [of(data.grid[p], coverageText), ...sizes.map((values) => of(values[p], sizeText))]));
  }

  // The last range ends at K: "101+" says it in less room.
  const compact = (ranges) => ranges.map((range, i) => (i === ranges.length - 1 && range.includes("-") ? `${range.split("-")[0]}+` : range));

  // Bars with their figures above them: (text, value) of each category.
  function bars(picture, values, text) {
    const tall = (i) => picture.up(values[i]) - 5;
    values.forEach((value, i) => { if (value !== null) picture.bar(i, value, "accent"); });
    values.forEach((value, i) => { if (value !== null) picture.write(text(value), picture.across(i), tall(i), { anchor: "middle", size: 11, colour: "ink", kind: "note" }); });
  }

  function drawHistogram() {
    const method = current();
    $("figure-histogram").hidden = !method.bins;
    if (!method.bins) return;
    const count = (i) => method.bins.at(state.position, i);
    const shares = data.bins.map((_, i) => (100 * count(i)) / data.m);
    const range = [0, Math.max(...shares) * 1.1];
    const picture = chart("chart-histogram", {
      label: `Set sizes: ${percent(stats(method, state.position).singletons)} of rows have one label.`,
      x: { title: "labels in the set", categories: compact(data.bins).map((bin) => [bin]) }, y: { title: "% of rows", range, ticks: roundTicks(range) },
    });
    bars(picture, shares, (share) => (share >= 0.05 ? share.toFixed(share < 9.95 ? 1 : 0) : ""));
    picture.hover(data.bins.keys(), (i) => `${data.bins[i]} ${data.bins[i] === "1" ? "label" : "labels"}\n${plural(count(i), "row", "rows")}, ${percent(shares[i] / 100, 2)}`);
    fillTable("table-histogram", ["size", "rows", "share"], data.bins.map((bin, i) => [bin, of(count(i), whole), of(shares[i] / 100, (share) => percent(share, 2))]));
  }

  function drawStrata() {
    const { hits, counts, low, high } = current().strata;
    const rows = compact(data.strata).map((range, i) => ({
      range, count: counts.at(state.position, i), hits: hits.at(state.position, i), low: low.at(state.position, i), high: high.at(state.position, i),
    })).map((row) => ({ ...row, coverage: row.count ? row.hits / row.count : NaN }));
    const used = rows.filter((row) => row.count);
    const range = [Math.max(-0.02, Math.min(asked(), ...used.map((row) => row.low)) - 0.03), 1.05];
    const picture = chart("chart-strata", {
      label: `Coverage by set size: ${used.map((row) => `${row.range}: ${row.coverage.toFixed(3)} of ${plural(row.count, "row", "rows")}`).join("; ")}.`,
      right: 44, x: { title: "labels in the set, and rows", categories: rows.map((row) => [row.range, whole(row.count)]) },
      y: { title: "coverage", range, ticks: roundTicks([Math.max(0, range[0]), 1]) },
    });
    picture.horizontal(asked(), "soft");
    rows.forEach((row, i) => {
      if (!row.count) return;
      picture.interval(i, row.low, row.high, "accent");
      picture.dot(i, row.coverage, "accent", 4.5);
      picture.note(row.coverage.toFixed(3), picture.across(i) + 7, picture.up(row.coverage) + 16, { size: 11, weight: 400 });
    });
    picture.hover(rows.keys(), (i) => (rows[i].count ? `${rows[i].range} labels: ${plural(rows[i].hits, "row", "rows")} covered of ${whole(rows[i].count)}\ncoverage ${four(rows[i].coverage)}, ${confidence} ${four(rows[i].low)} to ${four(rows[i].high)}` : `${rows[i].range} labels: no row`));
    fillTable("table-strata", ["size", "rows", "covered", "coverage", "from", "to"], rows.map((row, i) => [data.strata[i], of(row.count, whole), of(row.hits, whole), of(row.coverage, four), of(row.low, four), of(row.high, four)]));
  }

  function drawDifficulty() {
    $("figure-difficulty").hidden = !data.difficulty;
    if (!data.difficulty) return;
    const method = current();
    const rows = compact(data.difficulty.labels).map((range, i) => {
      const count = data.difficulty.counts[i];
      return { range, count, size: count ? method.difficulty_sizes.at(state.position, i) / count : NaN, coverage: count ? method.difficulty_hits.at(state.position, i) / count : NaN };
    });
    const used = rows.filter((row) => row.count);
    const range = [0, Math.max(0.1, ...used.map((row) => row.size)) * 1.1];
    const picture = chart("chart-difficulty", {
      label: `Mean set size by difficulty: ${used.map((row) => `${row.range}: ${sizeText(row.size)}, coverage ${row.coverage.toFixed(3)}`).join("; ")}.`,
      x: { title: "rank of the true label, rows, share covered", categories: used.map((row) => [row.range, whole(row.count), percent(row.coverage, 0)]) },
      y: { title: "mean set size", range, ticks: roundTicks(range) },
    });
    bars(picture, used.map((row) => row.size), sizeText);
    picture.hover(used.keys(), (i) => `true label at rank ${used[i].range}: ${plural(used[i].count, "row", "rows")}\nmean set size ${sizeText(used[i].size)}, coverage ${four(used[i].coverage)}`);
    fillTable("table-difficulty", ["rank", "rows", "mean size", "coverage"], rows.map((row, i) => [data.difficulty.labels[i], of(row.count, whole), of(row.size, sizeText), of(row.coverage, four)]));
  }

  function logGamma(x) {
    // Stirling's series, shifted to where it is accurate; for the picture of a density only.
    let shift = 0;
    let y = x;
    while (y < 10) { shift -= Math.log(y); y += 1; }
    return shift + (y - 0.5) * Math.log(y) - y + 0.5 * Math.log(2 * Math.PI) + 1 / (12 * y) - 1 / (360 * y ** 3) + 1 / (1260 * y ** 5);
  }

  function drawLaw(now) {
    const { law, by } = current();
    if (!law) return;
    const [rank, n, low, high] = [law.rank, law.n, law.low, law.high].map((curve) => curve.values[state.position]);
    const b = n + 1 - rank;
    const expected = rank / (n + 1);
    fillTable("table-law", ["", "coverage"], [["target", of(asked(), coverageText)], ["expected", of(expected, four)], [`${confidence} from`, of(low, four)], [`${confidence} to`, of(high, four)], ["observed", of(now.coverage, four)]]);
    const reach = Math.max(high - low, 1e-4);
    const from = Math.max(0, Math.min(low - 0.6 * reach, now.coverage - 0.1 * reach));
    const to = Math.min(1, Math.max(high + 0.6 * reach, now.coverage + 0.1 * reach));
    const constant = b ? logGamma(rank + b) - logGamma(rank) - logGamma(b) : 0;
    const density = (x) => (b ? Math.exp(constant + (rank - 1) * Math.log(x) + (b - 1) * Math.log1p(-x)) : 0);
    const steps = (start, stop) => Array.from({ length: 161 }, (_, i) => Math.min(Math.max(start + ((stop - start) * i) / 160, 1e-9), 1 - 1e-9));
    const [all, centre] = [steps(from, to), steps(Math.max(low, from), Math.min(high, to))];
    const picture = chart("chart-law", {
      label: `Beta law of coverage: ${confidence} between ${fixed(low, 4)} and ${fixed(high, 4)}; observed ${fixed(now.coverage, 4)}.`,
      x: { title: b ? "coverage over calibration sets" : "coverage is 1: every set is full", range: [from, to], ticks: roundTicks([from, to], narrow() ? 4 : 6) },
      y: { range: [0, b ? Math.max(...all.map(density)) * 1.3 : 1] }, right: 24,
    });
    if (b) picture.band(centre, centre.map(() => 0), centre.map(density), "accent-soft");
    if (b) picture.line(all, all.map(density), "accent");
    picture.horizontal(0, "line", "", 1);
    // The lower mark is named to its left, the higher to its right; the target below, so that they never meet.
    const targetFirst = asked() <= now.coverage;
    [["target", asked(), "soft", "6 4", targetFirst, 48], [by ? "observed, all" : "observed", now.coverage, "ink", "", !targetFirst, 26]].forEach(([text, x, colour, dash, before, y]) => {
      picture.vertical(x, colour, dash, colour === "ink" ? 2 : 1.5);
      picture.note(`${text} ${fixed(x, 4)}`, picture.across(x) + (before ? -5 : 5), y, { anchor: before ? "end" : "start", colour, weight: 400 });
    });
  }

  // ---- Everything together ----------------------------------------------------------------------------------

  let pending = 0;
  const CHARTS = [drawCoverage, drawSizes, drawHistogram, drawStrata, drawDifficulty, drawLaw];

  function renderCharts() {
    const now = stats(current(), state.position);
    CHARTS.forEach((draws) => draws(now));
    listContents();
    document.documentElement.dataset.drawn = String(state.position);
  }

  function redraw() {
    cancelAnimationFrame(pending);
    pending = requestAnimationFrame(renderCharts);
  }

  function render() {
    const now = stats(current(), state.position);
    Tip.hide(); // what it explains may be gone
    delete document.documentElement.dataset.drawn;
    renderTiles(now);
    renderMethods();
    renderCertificate(now);
    renderClasses();
    renderRows();
    redraw();
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
    let width = innerWidth;
    addEventListener("resize", () => { if (innerWidth !== width) redraw(); width = innerWidth; });
  }

  function prepare() {
    methods.forEach((method, i) => $("method").append(element("option", method.name, { value: i })));
    document.querySelectorAll(".confidence").forEach((node) => { node.textContent = confidence; });
    $("coverage-control").hidden = $("section-curves").hidden = data.grid.length < 2;
    $("section-rows").hidden = !explorer;
    document.querySelector(".controls").hidden = data.grid.length < 2 && methods.length < 2;
    if (methods.length < 2) $("t-methods").textContent = "In numbers";
    if (explorer) $("rows-aside").textContent = `${plural(explorer.rows.values.length, "row", "rows")} of the ${whole(data.m)} tested, drawn at random, ${data.ids ? "as they are called where they come from" : "by their number in the test data"}. Bars compare the labels shown.`;
    $("coverage").min = $("coverage-number").min = data.grid[0];
    $("coverage").max = $("coverage-number").max = data.grid[last];
    renderProvenance();
    renderGroups();
    prepareTerms();
    prepareDownloads();
  }

  prepare();
  connect();
  setTheme(matchMedia("(prefers-color-scheme: dark)").matches);
  setCoverage(data.grid[data.start]);
  performance.mark("evicp-first-figure");
  document.documentElement.dataset.ready = "true";
})();
