"use strict";
// Two sliders over two charts. A curve is {x: [...], y: [...]}, x rising; the page holds one or two curves for each run.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  if (!data) return;
  const WIDTH = 420, HEIGHT = 240, LEFT = 38, BOTTOM = 36, TOP = 10, RIGHT = 10;
  const percent = (share) => (100 * share).toFixed(1) + " %";
  const colour = (i) => `var(--s${i % 6})`;

  function element(name, attributes, parent, text) {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const key in attributes) node.setAttribute(key, attributes[key]);
    if (text !== undefined) node.textContent = text;
    parent.append(node);
    return node;
  }

  // axes from 0 to `most` and from 0 to 1, the curves, and a cursor that `move` places
  function chart(place, most, curves, label, axis) {
    const svg = element("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label }, place);
    const across = (x) => LEFT + (WIDTH - LEFT - RIGHT) * x / most;
    const up = (y) => HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * y;
    for (let k = 0; k <= 4; k++) {
      const y = up(k / 4), x = across(most * k / 4);
      element("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: y, y2: y, class: "gridline" }, svg);
      element("text", { x: LEFT - 6, y: y + 4, "text-anchor": "end" }, svg, String(k / 4));
      element("text", { x, y: HEIGHT - 20, "text-anchor": k === 4 ? "end" : "middle" }, svg, Number((most * k / 4).toPrecision(3)));
    }
    element("text", { x: (LEFT + WIDTH) / 2, y: HEIGHT - 2, "text-anchor": "middle" }, svg, axis);
    for (const curve of curves) {
      // steps, as the values are: y[i] holds from x[i - 1] to x[i]
      const steps = curve.x.map((x, i) => `V${up(curve.y[i]).toFixed(1)}H${across(x).toFixed(1)}`);
      const path = element("path", { d: `M${across(0)},${up(curve.y[0]).toFixed(1)}${steps.join("")}` }, svg);
      path.style.stroke = curve.colour;
      if (curve.dashed) path.style.strokeDasharray = "6 4";
    }
    const cursor = element("line", { y1: TOP, y2: HEIGHT - BOTTOM, class: "cursor" }, svg);
    const dots = curves.map((curve) => {
      const dot = element("circle", { r: 4 }, svg);
      dot.style.fill = curve.colour;
      return dot;
    });
    return (x, values) => {
      cursor.setAttribute("x1", across(x));
      cursor.setAttribute("x2", across(x));
      dots.forEach((dot, i) => {
        dot.style.display = values[i] === null ? "none" : "";
        if (values[i] !== null) { dot.setAttribute("cx", across(x)); dot.setAttribute("cy", up(values[i])); }
      });
    };
  }

  // the value of a step curve at x: that of the first step at or beyond it, nothing past the last
  function at(curve, x, beyond) {
    const i = curve.x.findIndex((step) => step >= x);
    return i < 0 ? beyond : curve.y[i];
  }

  // which colour is which run, where there are several
  function legend(place) {
    if (data.runs.length < 2) return;
    const line = document.createElement("p");
    line.className = "legend quiet";
    data.runs.forEach((run) => {
      const entry = document.createElement("span"), swatch = document.createElement("i");
      swatch.className = "swatch";
      swatch.style.background = colour(run.index);
      entry.append(swatch, run.name);
      line.append(entry);
    });
    place.append(line);
  }

  function slider(name, most, curves, label, axis, say) {
    const input = document.getElementById(name);
    const place = document.getElementById(name + "-chart");
    const move = chart(place, most, curves, label, axis);
    legend(place);
    const update = () => {
      const x = most * input.value / 1000;
      const values = curves.map((curve) => at(curve, x, curve.beyond));
      move(x, values);
      const shown = say(x, values);
      document.getElementById(name + "-value").textContent = shown.value;
      input.setAttribute("aria-valuetext", shown.value);
      document.getElementById(name + "-text").textContent = shown.text;
    };
    input.addEventListener("input", update);
    update();
  }

  const many = data.runs.length > 1;
  const named = (run, text) => (many ? `${run.name}: ${text}` : text[0].toUpperCase() + text.slice(1));

  const proven = data.runs.filter((run) => run.certified);  // an unconstrained network has no certificate
  if (proven.length) slider("epsilon", data.largest,
    proven.map((run) => ({ ...run.certified, colour: colour(run.index), beyond: 0 })),
    "Certified accuracy over epsilon", "epsilon",
    (x, values) => ({
      value: x.toPrecision(3),
      text: proven.map((run, i) => named(run, `${percent(values[i])} of the test samples are right and provably stay so.`)).join(" "),
    }));

  slider("threshold", 1,
    data.runs.flatMap((run) => [
      { ...run.accuracy, colour: colour(run.index), beyond: null },
      { ...run.coverage, colour: colour(run.index), beyond: 0, dashed: true },
    ]),
    "Accuracy of the answers that are given (solid) and the share of samples that get one (dashed), over the confidence threshold", "confidence threshold",
    (x, values) => ({
      value: percent(x),
      text: data.runs.map((run, i) => {
        const [accuracy, coverage] = [values[2 * i], values[2 * i + 1]];
        return named(run, coverage > 0 && accuracy !== null
          ? `${percent(coverage)} of the samples get an answer (dashed), and ${percent(accuracy)} of those are right (solid).`
          : "no sample gets an answer.");
      }).join(" "),
    }));
  // on paper nothing can be unfolded
  window.addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((part) => { part.open = true; }));
})();
