"use strict";
// Ask the server about one input, and draw what it says. Names come from data: they are only ever set as text.
(() => {
  const find = (id) => document.getElementById(id);
  const short = (x) => String(Number(Number(x).toPrecision(4)));
  const percent = (p) => (p > 0.999 && p < 1 ? "> 99.9 %" : p < 0.001 && p > 0 ? "< 0.1 %" : (100 * p).toFixed(1) + " %");
  const png = (text) => "data:image/png;base64," + text;
  const day = (days) => new Date(days * 864e5).toISOString().slice(0, 10);
  const SHOWN = 10; // classes at first sight
  const FORCE = 5; // the largest attack, in radii
  let about, question = null, answer = null, asked = 0;

  function make(kind, attributes = {}, ...children) {
    const node = document.createElement(kind);
    for (const [name, value] of Object.entries(attributes)) node[name] = value;
    node.append(...children);
    return node;
  }

  function draw(place, kind, attributes, text = "") {
    const shape = document.createElementNS("http://www.w3.org/2000/svg", kind);
    for (const [name, value] of Object.entries(attributes)) shape.setAttribute(name, value);
    shape.textContent = text;
    return place.appendChild(shape);
  }

  async function ask(path, body) {
    const how = body && { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
    let response;
    try {
      response = await fetch("api/" + path, how || {});
    } catch {
      throw new Error("The server does not answer: is it still running?");
    }
    const said = await response.json().catch(() => ({ detail: `the server said ${response.status}` }));
    if (!response.ok) throw new Error(said.detail);
    return said;
  }

  // `stale`: what is shown is not about what was given
  function complain(message, stale = false) {
    find("trouble").textContent = message;
    find("trouble").hidden = !message;
    document.body.classList.toggle("stale", stale);
  }

  // one request at a time; of those that come meanwhile only the last is made, a little later
  function latest(work, pause) {
    let busy = false, again = false;
    return async function run() {
      again = busy;
      if (busy) return;
      busy = true;
      await new Promise((done) => setTimeout(done, pause));
      again = false; // what came during the pause is in this one
      await work();
      busy = false;
      if (again) run();
    };
  }

  // --- the input ---

  async function choose(input, truth = "") {
    question = input;
    const turn = ++asked;
    try {
      const said = await ask("predict", question);
      if (turn !== asked) return; // another input was chosen meanwhile
      answer = said;
      complain("");
      showAnswer(truth);
    } catch (error) {
      if (turn === asked) complain(error.message, true);
    }
  }

  async function readFile(file) {
    if (!file) return;
    if (file.size * 4 / 3 > about.largest_body - 1000) {
      complain(`The file is too large: give at most ${Math.floor(about.largest_body * 0.75 / 1e6)} MB.`, true);
      return;
    }
    const url = await new Promise((done) => {
      const reader = new FileReader();
      reader.onload = () => done(reader.result);
      reader.readAsDataURL(file);
    });
    pressed(null);
    choose({ picture: url.slice(url.indexOf(",") + 1) });
  }

  function preparePicture() {
    const [channels, height, width] = about.shape, drop = find("drop");
    find("picture").hidden = false;
    find("shape").textContent = `The network sees ${width} x ${height} pixels${channels === 1 ? ", grey" : ""}.`;
    document.body.classList.toggle("small", Math.max(width, height) <= 128);
    find("file").addEventListener("change", (event) => { readFile(event.target.files[0]); event.target.value = ""; });
    for (const name of ["dragover", "dragenter"]) document.addEventListener(name, (event) => { event.preventDefault(); drop.classList.add("over"); });
    document.addEventListener("dragleave", () => drop.classList.remove("over"));
    document.addEventListener("drop", (event) => { event.preventDefault(); drop.classList.remove("over"); readFile(event.dataTransfer.files[0]); });
    document.addEventListener("paste", (event) => readFile([...event.clipboardData.files][0]));
  }

  function cellInput(column) {
    if (column.kind === "category") {
      const choices = column.categories.map((name) => make("option", { value: name, textContent: name }));
      return make("select", {}, ...choices, make("option", { value: "", textContent: "(missing)" }));
    }
    const known = column.least === null ? "" : column.kind === "date" ? `${day(column.least)} to ${day(column.largest)}` : `${short(column.least)} to ${short(column.largest)}`;
    return make("input", { type: column.kind, step: "any", placeholder: "missing", title: known && `in training ${known}` });
  }

  function prepareRow() {
    const form = find("row");
    form.hidden = false;
    form.addEventListener("submit", (event) => event.preventDefault());
    if (!about.columns.length) {
      const area = make("textarea", { id: "numbers-of-row", placeholder: `${about.shape[0]} numbers, with commas or spaces between them` });
      form.append(make("label", { className: "wide" }, "A row of numbers", area));
    }
    for (const column of about.columns) {
      const input = cellInput(column);
      input.value = column.typical === null ? "" : typeof column.typical === "number" ? short(column.typical) : column.typical;
      form.append(make("label", {}, column.name, input));
    }
    const later = latest(readRow, 200);
    form.addEventListener("input", () => { pressed(null); later(); });
  }

  async function readRow() {
    const fields = [...find("row").querySelectorAll("input, select, textarea")];
    const wrong = fields.findIndex((field) => field.validity.badInput);
    if (wrong >= 0) { complain(`${about.columns[wrong].name}: this is no ${about.columns[wrong].kind}.`, true); return; }
    if (!about.columns.length) {
      const numbers = fields[0].value.split(/[\s,;]+/).filter(Boolean).map(Number);
      await choose({ row: numbers });
      return;
    }
    const cell = (field, column) => (field.value === "" ? null : column.kind === "number" ? Number(field.value) : field.value);
    await choose({ row: Object.fromEntries(fields.map((field, i) => [about.columns[i].name, cell(field, about.columns[i])])) });
  }

  function fillRow(row) {
    const fields = [...find("row").querySelectorAll("input, select, textarea")];
    if (!about.columns.length) fields[0].value = row.join(", ");
    else about.columns.forEach((column, i) => { fields[i].value = row[column.name] ?? ""; });
  }

  function pressed(button) {
    for (const other of find("thumbs").querySelectorAll("button")) other.setAttribute("aria-pressed", String(other === button));
  }

  function showSamples(samples) {
    find("samples").hidden = !samples.length;
    find("thumbs").classList.toggle("rows", about.input === "row");
    for (const [i, sample] of samples.entries()) {
      const button = make("button", { type: "button" });
      if (sample.picture) button.append(make("img", { src: png(sample.picture), alt: `test sample ${i + 1}, of class ${sample.truth}` }));
      else button.append(`row ${i + 1}`);
      button.addEventListener("click", () => {
        pressed(button);
        if (sample.row) fillRow(sample.row);
        choose(sample.picture ? { picture: sample.picture } : { row: sample.row }, sample.truth);
      });
      find("thumbs").append(make("li", {}, button));
    }
    const first = find("thumbs").querySelector("button");
    if (first) first.click();
    else if (about.columns.length) readRow();
  }

  // --- the answer ---

  function bar(chance) {
    const fill = make("div", { className: "fill" }), range = make("div", { className: "range" });
    fill.style.width = `${100 * chance.probability}%`;
    range.hidden = true;
    const track = make("div", { className: "track" }, fill, range);
    return make("li", {}, make("span", { textContent: chance.label }), track, make("span", { className: "value", textContent: percent(chance.probability) }));
  }

  function showAnswer(truth) {
    const { label, probability, radius, unit, classes } = answer;
    find("answer").hidden = find("attack").hidden = false;
    find("label").textContent = label;
    find("probability").textContent = percent(probability);
    find("truth").textContent = truth && (truth === label ? "This is right." : `The truth is ${truth}.`);
    if (answer.seen) { find("seen").src = png(answer.seen); find("seen").hidden = false; }
    find("promise").textContent = !about.certified ? "The network is unconstrained: nothing is proven about this answer."
      : radius === null ? "No change whatever changes the class: proven."
        : radius === 0 ? "Nothing is proven about this answer: two classes are as good as equal."
          : `No change smaller than ${short(radius)} changes the class: proven. (l2 norm, unit: ${unit})`;
    const far = answer.outside;
    find("outside").hidden = !far.length;
    find("outside").textContent = far.length ? `Far outside of what training saw: ${far.slice(0, 5).join(", ")}${far.length > 5 ? ", ..." : ""}. The answer means little there.` : "";
    const rows = classes.map(bar), many = rows.length > SHOWN + 2;
    find("bars").replaceChildren(...(many ? rows.slice(0, SHOWN) : rows));
    find("more").replaceChildren(...(many ? rows.slice(SHOWN) : []));
    find("rest").hidden = !many;
    find("rest").querySelector("summary").textContent = `The other ${rows.length - SHOWN} classes`;
    find("band").hidden = !answer.epsilons.length;
    if (answer.epsilons.length) showBand();
    showSize();
    prepareAttack();
  }

  // --- the band ---

  const BOX = { left: 72, right: 612, top: 30, bottom: 250 };
  const places = { x: (e) => BOX.left + (BOX.right - BOX.left) * e / answer.epsilons.at(-1), y: (p) => BOX.bottom - (BOX.bottom - BOX.top) * p };

  function ticks(most) {
    const rough = most / 5, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
    return Array.from({ length: Math.floor(most / step) + 1 }, (_, i) => i * step);
  }

  function showBand() {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg"), eps = answer.epsilons;
    svg.setAttribute("viewBox", "0 0 640 310");
    for (const p of [0, 0.25, 0.5, 0.75, 1]) {
      draw(svg, "line", { class: "grid", x1: BOX.left, x2: BOX.right, y1: places.y(p), y2: places.y(p) });
      draw(svg, "text", { x: BOX.left - 6, y: places.y(p) + 4, "text-anchor": "end" }, `${100 * p} %`);
    }
    for (const e of ticks(eps.at(-1))) draw(svg, "text", { x: places.x(e), y: BOX.bottom + 22, "text-anchor": "middle" }, short(e));
    draw(svg, "text", { x: (BOX.left + BOX.right) / 2, y: BOX.bottom + 48, "text-anchor": "middle" }, "size of the change, epsilon");
    ["second", "first"].forEach((name) => {
      const chance = answer.classes[name === "first" ? 0 : 1];
      const path = (values) => values.map((p, i) => `${places.x(eps[i])},${places.y(p)}`);
      draw(svg, "polygon", { class: `band-${name}`, points: [...path(chance.highest), ...path(chance.lowest).reverse()].join(" ") });
      for (const ends of [chance.lowest, chance.highest]) draw(svg, "polyline", { class: `line-${name}`, points: path(ends).join(" ") });
      find(name).textContent = chance.label;
    });
    if (answer.radius !== null && answer.radius > 0 && answer.radius <= eps.at(-1)) {
      const x = places.x(answer.radius);
      draw(svg, "line", { class: "radius", x1: x, x2: x, y1: BOX.top, y2: BOX.bottom });
      draw(svg, "text", { class: "radius-word", x, y: BOX.top - 8, "text-anchor": "middle" }, "certified radius");
    }
    draw(svg, "line", { class: "cursor", y1: BOX.top, y2: BOX.bottom });
    find("chart").replaceChildren(svg);
    const slider = find("epsilon");
    slider.max = eps.length - 1;
    slider.value = Math.round(0.32 * (eps.length - 1)); // of the grid that the server chose, 0.8 radii
    moveEpsilon();
  }

  function moveEpsilon() {
    const i = Number(find("epsilon").value), e = answer.epsilons[i], [first] = answer.classes;
    const line = find("chart").querySelector(".cursor");
    for (const end of ["x1", "x2"]) line.setAttribute(end, places.x(e));
    find("epsilon-value").textContent = short(e);
    const safe = answer.radius === null || e <= answer.radius;
    const text = `The probability of ${first.label} stays between ${percent(first.lowest[i])} and ${percent(first.highest[i])}` + (safe ? ", and the class stays." : "; the class may change.");
    find("epsilon-text").textContent = text;
    find("epsilon").setAttribute("aria-valuetext", short(e));
    find("chart").setAttribute("aria-label", text);
    [...find("bars").children].forEach((row, k) => {
      const { lowest, highest } = answer.classes[k], range = row.querySelector(".range");
      range.hidden = i === 0 || !lowest.length;
      if (range.hidden) return;
      range.style.left = `${100 * lowest[i]}%`;
      range.style.width = `${100 * (highest[i] - lowest[i])}%`;
    });
  }

  // --- the size of the radius ---

  function picture(text, caption) {
    const figure = make("figure", {}, make("img", { src: png(text), alt: caption }));
    figure.append(make("figcaption", { textContent: caption }));
    return figure;
  }

  const magnified = (change, name) => (change.size > 0 ? `${name}, magnified ${Number(change.magnified.toPrecision(2))} times` : "no change");

  function showSize() {
    const { radius, random, steepest, columns } = answer;
    find("size").hidden = !random && !columns.length;
    find("size-pictures").replaceChildren();
    find("rooms").replaceChildren();
    if (random) {
      const most = Math.sqrt(about.shape.reduce((a, b) => a * b));
      find("size-text").textContent = `Changes of exactly ${short(radius)}, ${percent(radius / most)} of the way from black to white. The class is the same in all of them, and in every smaller change.`;
      find("size-pictures").replaceChildren(
        picture(answer.seen, "the input"), picture(random.picture, "a random change"), picture(steepest.picture, `a change towards ${answer.classes[1].label}`),
        picture(steepest.difference, magnified(steepest, "that change")));
    } else if (columns.length) {
      find("size-text").textContent = "How far each number may move by itself, all else equal, until the class could change. The grey bar is what training saw.";
      find("rooms").replaceChildren(...columns.map(room));
    }
  }

  function room({ name, value, radius }) {
    const column = about.columns.find((one) => one.name === name), track = make("div", { className: "track" });
    const isDate = column && column.kind === "date";
    const told = value === null ? "missing" : radius === null ? "any" : `± ${short(radius)}${isDate ? " d" : ""}`;
    if (column && column.least !== null && value !== null) {
      const low = Math.min(column.least, value), width = Math.max(column.largest, value) - low || 1;
      const place = (x) => 100 * Math.min(1, Math.max(0, (x - low) / width));
      const free = make("div", { className: "free" }), at = make("div", { className: "at" });
      const [from, to] = radius === null ? [0, 100] : [place(value - radius), place(value + radius)];
      free.style.left = `${from}%`;
      free.style.width = `${Math.max(0.5, to - from)}%`;
      at.style.left = `${place(value)}%`;
      track.append(free, at);
    }
    return make("li", {}, make("span", { textContent: name }), track, make("span", { className: "value", textContent: told }));
  }

  // --- the attack ---

  // what an attack may change at most: so many hundredths of the radius, or of what the run was made for
  const unitForce = () => (answer.radius > 0 && answer.radius < 1e6 ? answer.radius : Math.max(...about.epsilons, 0.01));
  const force = () => unitForce() * find("force").value / 100;

  const runAttack = latest(async () => {
    const input = question, epsilon = force();
    const slow = setTimeout(() => showOutcome("open", "attacking ...", ""), 400);
    try {
      const found = await ask("attack", { ...input, epsilon });
      clearTimeout(slow);
      if (input === question) { complain(""); showAttack(found, epsilon); }
    } catch (error) {
      clearTimeout(slow);
      showOutcome("open", "not tried", "");
      complain(error.message);
    }
  }, 200);

  function showOutcome(tone, word, text) {
    find("outcome-badge").className = `badge ${tone}`;
    find("outcome-badge").textContent = word;
    find("outcome-text").textContent = text;
  }

  function prepareAttack() {
    find("force").max = 100 * FORCE;
    moveForce();
  }

  function moveForce() {
    const radii = answer.radius > 0 ? `, ${short(force() / answer.radius)} times the certified radius` : "";
    find("force-value").textContent = `${short(force())}${radii}`;
    find("force").setAttribute("aria-valuetext", short(force()));
    runAttack();
  }

  function showAttack(found, epsilon) {
    const { changed, certified, label, distance, probability } = found;
    const left = `The probability of ${answer.label} is ${percent(probability)} there.`;
    const text = changed && certified ? "THE CERTIFICATE IS BROKEN. Please report it: this must never happen."
      : changed ? `The class changed at a distance of ${short(distance)}${about.certified ? ", beyond the certified radius" : ""}. ${left}`
        : certified ? `As proven: no attack of this size can change it. ${left}`
          : `Nothing is proven for changes up to ${short(epsilon)}, and this attack found none that changes the class. ${left}`;
    showOutcome(changed ? "bad" : certified ? "good" : "open", changed ? `it is now ${label}` : `still ${label}`, text);
    find("attack-pictures").replaceChildren();
    if (found.change) {
      find("attack-pictures").replaceChildren(picture(answer.seen, "the input"), picture(found.change.picture, `after the attack: ${label}`),
        picture(found.change.difference, magnified(found.change, "the change")));
    }
    const moved = found.columns.filter(({ before, after }) => short(before) !== short(after));
    find("moves").hidden = !moved.length;
    find("moves").querySelector("tbody").replaceChildren(...moved.map(({ name, before, after }) => {
      const column = about.columns.find((one) => one.name === name), say = column && column.kind === "date" ? day : short;
      return make("tr", {}, make("th", { scope: "row", textContent: name }), make("td", { className: "number", textContent: say(before) }), make("td", { className: "number", textContent: say(after) }));
    }));
  }

  // --- start ---

  async function start() {
    try {
      about = await ask("about");
    } catch (error) {
      complain(error.message);
      return;
    }
    document.title = find("name").textContent = `lipscale: ${about.name}`;
    find("verdict").textContent = about.verdict;
    find("verdict").className = `badge ${about.tone}`;
    find("task").textContent = `${about.classes.length} classes: ${about.classes.slice(0, 12).join(", ")}${about.classes.length > 12 ? ", ..." : ""}`;
    find("version").textContent = about.version;
    find("numbers").replaceChildren(...about.numbers.map(({ name, value, note }) => make("li", { className: "card" },
      make("strong", { textContent: value }), make("br"), name, make("br"), make("span", { className: "quiet", textContent: note }))));
    (about.input === "picture" ? preparePicture : prepareRow)();
    find("epsilon").addEventListener("input", moveEpsilon);
    find("force").addEventListener("input", moveForce);
    showSamples(await ask("samples").catch(() => []));
  }

  start();
})();
