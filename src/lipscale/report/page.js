"use strict";
// Two sliders over two charts. A curve is {x: [...], y: [...]}, x rising; the page holds one or two curves for each run.
(() => {
  // on paper nothing can be unfolded
  window.addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((part) => { part.open = true; }));
  const data = JSON.parse(document.getElementById("data").textContent);
  if (!data) return;
  const WIDTH = 420, HEIGHT = 240, LEFT = 38, BOTTOM = 36, TOP = 10, RIGHT = 10;
  const find = (id) => document.getElementById(id);
  const percent = (share) => (100 * share).toFixed(1) + " %";
  const up = (y) => (HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * y).toFixed(1);

  // axes from 0 to `most` and from 0 to 1, the curves, and a cursor with a dot on each curve; all of it numbers and our words
  function chart(across, most, curves, label, axis) {
    const ticks = [0, 0.25, 0.5, 0.75, 1].map((k) => `
      <line x1="${LEFT}" x2="${WIDTH - RIGHT}" y1="${up(k)}" y2="${up(k)}" class="gridline"/>
      <text x="${LEFT - 6}" y="${+up(k) + 4}" text-anchor="end">${k}</text>
      <text x="${across(most * k)}" y="${HEIGHT - 20}" text-anchor="${k === 1 ? "end" : "middle"}">${Number((most * k).toPrecision(3))}</text>`);
    // steps, as the values are: y[i] holds from x[i - 1] to x[i]
    const paths = curves.map(({ x, y, colour, dashed }) => `<path style="stroke: ${colour}; ${dashed ? "stroke-dasharray: 6 4" : ""}"
      d="M${across(0)},${up(y[0])}${x.map((end, i) => `V${up(y[i])}H${across(end)}`).join("")}"/>`);
    return `<svg viewBox="0 0 ${WIDTH} ${HEIGHT}" role="img" aria-label="${label}">${ticks.join("")}${paths.join("")}
      <text x="${(LEFT + WIDTH) / 2}" y="${HEIGHT - 2}" text-anchor="middle">${axis}</text>
      <line y1="${TOP}" y2="${HEIGHT - BOTTOM}" class="cursor"/>
      ${curves.map(({ colour }) => `<circle r="4" style="fill: ${colour}"/>`).join("")}</svg>`;
  }

  function slider(name, most, curves, label, axis, say) {
    const input = find(name), place = find(name + "-chart");
    const across = (x) => (LEFT + (WIDTH - LEFT - RIGHT) * x / most).toFixed(1);
    place.insertAdjacentHTML("afterbegin", chart(across, most, curves, label, axis));
    const cursor = place.querySelector(".cursor"), dots = place.querySelectorAll("circle");
    const update = () => {
      const x = most * input.value / 1000;
      // of a step curve: the value of the first step at or beyond x, nothing past the last
      const values = curves.map((curve) => curve.y[curve.x.findIndex((step) => step >= x)] ?? curve.beyond);
      for (const end of ["x1", "x2"]) cursor.setAttribute(end, across(x));
      dots.forEach((dot, i) => {
        dot.style.display = values[i] === null ? "none" : "";
        dot.setAttribute("cx", across(x));
        dot.setAttribute("cy", up(values[i]));
      });
      const shown = say(x, values);
      find(name + "-value").textContent = shown.value;
      input.setAttribute("aria-valuetext", shown.value);
      find(name + "-text").textContent = shown.text.join(" ");
    };
    input.addEventListener("input", update);
    update();
  }

  const named = (run, text) => (data.runs.length > 1 ? `${run.name}: ${text}` : text[0].toUpperCase() + text.slice(1));
  const curve = (run, kind, options) => ({ ...run[kind], colour: `var(--s${run.index % 6})`, ...options });

  const proven = data.runs.filter((run) => run.certified);  // an unconstrained network has no certificate
  if (proven.length) slider("epsilon", data.largest, proven.map((run) => curve(run, "certified", { beyond: 0 })),
    "Certified accuracy over epsilon", "epsilon",
    (x, values) => ({
      value: x.toPrecision(3),
      text: proven.map((run, i) => named(run, `${percent(values[i])} of the test samples are right and provably stay so.`)),
    }));

  slider("threshold", 1,
    data.runs.flatMap((run) => [curve(run, "accuracy", { beyond: null }), curve(run, "coverage", { beyond: 0, dashed: true })]),
    "Accuracy of the answers that are given (solid) and the share of samples that get one (dashed), over the confidence threshold", "confidence threshold",
    (x, values) => ({
      value: percent(x),
      text: data.runs.map((run, i) => named(run, values[2 * i + 1] > 0 && values[2 * i] !== null
        ? `${percent(values[2 * i + 1])} of the samples get an answer (dashed), and ${percent(values[2 * i])} of those are right (solid).`
        : "no sample gets an answer.")),
    }));
})();
