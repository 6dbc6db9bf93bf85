"use strict";
(() => {
  const tip = document.getElementById("tip");
  if (!tip) return;
  const VERDICTS = ["unknown", "active", "inactive", "unstable"];
  const EVIDENCE = ["none", "data", "solver", "witness", "proof"];
  const RESTS = {
    none: "none", data: "data: only observed, no proof", solver: "a solver's word, true up to its tolerances",
    witness: "witnesses: an input for each state", proof: "proof, in spite of rounding",
  };
  const layers = JSON.parse(document.getElementById("data").textContent);

  // Four digits, never beyond what was proved: a lower end is rounded down, an upper end up.
  const shortened = (x, up) => {
    if (Number.isNaN(x)) return "not bounded";
    if (!Number.isFinite(x)) return x > 0 ? "∞" : "−∞";
    if (x === 0) return "0";
    const [digits, power] = x.toExponential(3).split("e").map(Number);
    let whole = Math.round(digits * 1000);
    const there = () => Number(`${whole}e${power - 3}`);
    if (up ? there() < x : there() > x) whole += up ? 1 : -1;
    const size = Math.abs(there());
    return (size >= 1e-4 && size < 1e6 ? String(there()) : there().toExponential()).replace("-", "−");
  };

  const facts = (layer, i) => {
    const code = layer.codes.charCodeAt(i) - 65;
    const lower = layer.view.getFloat32(8 * i, true), upper = layer.view.getFloat32(8 * i + 4, true);
    const verdict = VERDICTS[Math.floor(code / 5)], evidence = EVIDENCE[code % 5];
    const gap = verdict === "active" ? lower : verdict === "inactive" ? -upper : NaN;
    const margin = evidence === "solver" ? layer.claimed[i] ?? NaN : gap >= 0 ? gap : NaN;
    return {verdict, evidence, lower, upper, margin};
  };

  const place = (layer, i) => {
    if (layer.shape.length < 2) return "";
    const at = [];
    for (let axis = layer.shape.length - 1, rest = i; axis >= 0; axis--) {
      at.unshift(rest % layer.shape[axis]);
      rest = Math.floor(rest / layer.shape[axis]);
    }
    return ` (channel ${at[0]}, position ${at.slice(1).join(", ")})`;
  };

  const lines = (layer, i) => {
    const {verdict, evidence, lower, upper, margin} = facts(layer, i);
    const text = [`${layer.unit} ${i}${place(layer, i)}: ${verdict}`, `evidence: ${RESTS[evidence]}`];
    if (!Number.isNaN(margin)) text.push(`margin: at least ${shortened(margin, false)}`);
    text.push(`before the ReLU: ${shortened(lower, false)} to ${shortened(upper, true)}`);
    return text;
  };

  const corner = (layer, i) => {
    const [width, height, across, gap, cell] = layer.layout;
    const row = Math.floor(i / width), tile = Math.floor(row / height);
    return [
      cell * ((tile % across) * (width + gap) + (i % width)),
      cell * (Math.floor(tile / across) * (height + gap) + (row % height)),
    ];
  };

  const neuronAt = (layer, svg, event) => {
    const [width, height, across, gap, cell] = layer.layout;
    const box = svg.getBoundingClientRect(), view = svg.viewBox.baseVal;
    const x = Math.floor(((event.clientX - box.left) * view.width) / box.width / cell);
    const y = Math.floor(((event.clientY - box.top) * view.height) / box.height / cell);
    const right = Math.floor(x / (width + gap)), down = Math.floor(y / (height + gap));
    const i = x - right * (width + gap), j = y - down * (height + gap);
    if (x < 0 || y < 0 || i >= width || j >= height || right >= across) return -1;
    const index = ((down * across + right) * height + j) * width + i;
    return index < layer.codes.length ? index : -1;
  };

  const hide = () => {
    tip.hidden = true;
    document.querySelectorAll(".cursor").forEach((mark) => mark.remove());
  };

  const beside = (mark) => {
    const square = mark.getBoundingClientRect(), own = tip.getBoundingClientRect();
    const above = square.top - own.height - 8, most = document.documentElement.clientWidth - own.width - 6;
    tip.style.left = `${Math.max(6, Math.min(square.left, most))}px`;
    tip.style.top = `${above >= 6 ? above : square.bottom + 8}px`;
  };

  const show = (layer, svg, index) => {
    hide();
    const [x, y] = corner(layer, index), cell = layer.layout[4];
    const mark = document.createElementNS(svg.namespaceURI, "rect");
    for (const [name, value] of Object.entries({class: "cursor", x, y, width: cell, height: cell})) mark.setAttribute(name, value);
    svg.append(mark);
    const text = lines(layer, index);
    tip.replaceChildren(...text.map((line, at) => {
      const part = document.createElement(at ? "div" : "strong");
      part.textContent = line;
      return part;
    }));
    layer.index = index;
    svg.setAttribute("aria-valuenow", index);
    svg.setAttribute("aria-valuetext", text.join("; "));
    tip.hidden = false;
    beside(mark);
    return mark;
  };

  for (const svg of document.querySelectorAll("svg.live")) {
    const layer = layers[Number(svg.dataset.layer)];
    const bytes = Uint8Array.from(atob(layer.bounds), (c) => c.charCodeAt(0));
    layer.view = new DataView(bytes.buffer);
    layer.index = 0;
    const last = layer.codes.length - 1, width = layer.layout[0];
    const about = {tabindex: 0, role: "slider", "aria-valuemin": 0, "aria-valuemax": last, "aria-valuenow": 0, "aria-valuetext": lines(layer, 0).join("; ")};
    for (const [name, value] of Object.entries(about)) svg.setAttribute(name, value);
    const point = (event) => {
      const index = neuronAt(layer, svg, event);
      if (index >= 0) show(layer, svg, index);
      else hide();
    };
    svg.addEventListener("pointermove", point);
    svg.addEventListener("pointerdown", point);
    svg.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") hide(); });
    svg.addEventListener("focus", () => show(layer, svg, layer.index));
    svg.addEventListener("blur", hide);
    svg.addEventListener("keydown", (event) => {
      const steps = {ArrowRight: 1, ArrowLeft: -1, ArrowDown: width, ArrowUp: -width, PageDown: 10 * width, PageUp: -10 * width, Home: -last, End: last};
      if (event.key === "Escape") hide();
      if (!(event.key in steps) || event.ctrlKey || event.altKey || event.metaKey) return;
      event.preventDefault();
      const mark = show(layer, svg, Math.max(0, Math.min(last, layer.index + steps[event.key])));
      mark.scrollIntoView({block: "nearest", behavior: "instant"});
      beside(mark);
    });
  }
  addEventListener("scroll", () => {
    const mark = document.querySelector(".cursor");
    if (mark) beside(mark);
  }, {passive: true});
  addEventListener("beforeprint", hide);
})();
