"use strict";
// Two sliders, each over a figure that stands on the page already: a cursor, a dot on each curve, and a sentence.
(() => {
  // on paper nothing can be unfolded
  window.addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((part) => { part.open = true; }));
  const data = JSON.parse(document.getElementById("data").textContent);
  const find = (id) => document.getElementById(id);
  const percent = (share) => (100 * share).toFixed(1) + " %";

  function draw(place, kind, attributes) {
    const shape = document.createElementNS("http://www.w3.org/2000/svg", kind);
    for (const [name, value] of Object.entries(attributes)) shape.setAttribute(name, value);
    return place.appendChild(shape);
  }

  // a curve has a value for each place of its slider; nothing is interpolated
  function slider(name, say) {
    if (!data[name]) return;
    const { frame, start, curves } = data[name], input = find(name), svg = find(name + "-chart").querySelector("svg");
    const cursor = draw(svg, "line", { class: "cursor", y1: frame.one, y2: frame.zero });
    const dots = curves.map(({ index }) => draw(svg, "circle", { r: 4, style: `fill: var(--s${index % 6})` }));
    const update = () => {
      const x = frame.left + (frame.right - frame.left) * input.value / input.max;
      const values = curves.map(({ y }) => y[input.value]);
      for (const end of ["x1", "x2"]) cursor.setAttribute(end, x);
      dots.forEach((dot, i) => {
        dot.style.display = values[i] === null ? "none" : "";
        dot.setAttribute("cx", x);
        dot.setAttribute("cy", frame.zero + (frame.one - frame.zero) * values[i]);
      });
      const shown = say(frame.most * input.value / input.max, values);
      find(name + "-value").textContent = shown.value;
      input.setAttribute("aria-valuetext", shown.value);
      find(name + "-text").textContent = shown.text.join(" ");
    };
    find(name + "-slider").hidden = false;
    input.value = start;
    input.addEventListener("input", update);
    update();
  }

  const named = (curves, i, text) => (new Set(curves.map(({ name }) => name)).size > 1 ? `${curves[i].name}: ${text}` : text[0].toUpperCase() + text.slice(1));

  slider("epsilon", (x, values) => ({
    value: String(Number(x.toPrecision(4))),
    text: values.map((share, i) => named(data.epsilon.curves, i, `${percent(share)} of the test samples are right and provably stay so.`)),
  }));

  slider("threshold", (x, values) => ({
    value: percent(x),
    text: values.flatMap((accuracy, i) => (i % 2 ? [] : [named(data.threshold.curves, i, accuracy === null ? "no sample gets an answer."
      : `${percent(values[i + 1])} of the samples get an answer, and ${percent(accuracy)} of those are right.`)])),
  }));
})();
