"use strict";
// Draws the charts from the JSON in the page. Names come from files: they only ever become text nodes.
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const PREFIXES = ["", "k", "M", "G", "T", "P", "E"];

  const amount = (value, unit) => {
    let at = 0;
    while (Math.abs(value) >= 1000 && at < PREFIXES.length - 1) { value /= 1000; at += 1; }
    const digits = at === 0 || Math.abs(value) >= 100 ? 0 : 1;
    return `${value.toFixed(digits)} ${PREFIXES[at]}${unit}`;
  };
  const duration = (seconds) => {
    if (seconds < 60) return `${seconds.toFixed(1)} s`;
    const whole = Math.round(seconds), two = (n) => String(n).padStart(2, "0");
    const hours = Math.floor(whole / 3600), minutes = Math.floor(whole / 60) % 60;
    return hours ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
  };
  const plain = (value) => String(Number(value.toPrecision(6)));
  const shown = {
    bytes: (v) => amount(v, "B"), flops: (v) => amount(v, "FLOP"), round: plain, seconds: plain, device_hours: plain,
  };
  const metric = (curve, i, unit) => {
    const form = (value) => (unit === "%" ? value.toFixed(2) : String(Number(value.toPrecision(4))));
    return `${form(curve.mean[i])}${curve.std[i] === null ? "" : ` ± ${form(curve.std[i])}`} ${unit}`.trimEnd();
  };

  const ticks = (low, high, number) => {
    if (high <= low) return [low];
    const raw = (high - low) / number, power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= raw * (1 - 1e-9));
    const found = [];
    for (let k = Math.ceil(low / step - 1e-9); k <= Math.floor(high / step + 1e-9); k += 1) found.push(k * step);
    return found;
  };
  const logTicks = (low, high) => {
    const powers = [];
    for (let k = Math.floor(Math.log10(low)); k <= Math.ceil(Math.log10(high)); k += 1) powers.push(10 ** k);
    const inside = powers.filter((value) => low <= value && value <= high);
    if (inside.length >= 3) return inside;
    return powers.flatMap((value) => [value, 2 * value, 5 * value]).filter((value) => low <= value && value <= high);
  };
  const logScale = (low, high, start, end) => {
    const reach = Math.log(high / low) || 1;
    return (value) => start + Math.log(Math.max(value, low) / low) / reach * (end - start);
  };
  const scale = (low, high, start, end) => (value) => start + (value - low) / (high - low || 1) * (end - start);

  const make = (parent, name, attributes, text) => {
    const node = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    parent.append(node);
    return node;
  };
  const html = (parent, name, className, text) => {
    const node = document.createElement(name);
    if (className) node.className = className;
    if (text !== undefined) node.textContent = text;
    parent.append(node);
    return node;
  };

  class Chart {
    constructor(place, study, number) {
      Object.assign(this, { study, axes: study.axes, axis: study.axes[0].name, hidden: new Set(), at: null, width: 0 });
      place.replaceChildren();
      this.controls = html(place, "div", "controls");
      this.plot = html(place, "div", "plot");
      this.plot.tabIndex = 0;
      this.plot.setAttribute("role", "group");
      this.plot.setAttribute("aria-label", "Chart: move the pointer, or use the arrow keys, to read values");
      this.tip = document.createElement("div");
      this.tip.className = "tip";
      this.tip.hidden = true;
      this.tip.setAttribute("role", "status");
      this.addAxes(number);
      this.addLegend();
      html(place, "p", "hint", study.hint);
      this.plot.addEventListener("pointermove", (event) => this.hover(event));
      this.plot.addEventListener("pointerdown", (event) => this.hover(event));
      // a finger that is lifted leaves the value standing; a tap elsewhere removes it
      this.plot.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") this.show(null); });
      document.addEventListener("pointerdown", (event) => { if (!this.plot.contains(event.target)) this.show(null); });
      this.plot.addEventListener("blur", () => this.show(null));
      this.plot.addEventListener("keydown", (event) => this.key(event));
      new ResizeObserver(() => { if (this.plot.clientWidth !== this.width) this.draw(); }).observe(this.plot);
      this.draw();
    }

    addAxes(number) {
      const set = html(this.controls, "fieldset");
      html(set, "legend", "", "against");
      const segments = html(set, "div", "segments");
      for (const axis of this.axes) {
        const label = html(segments, "label");
        const input = html(label, "input");
        Object.assign(input, { type: "radio", name: `axis-${number}`, value: axis.name, checked: axis.name === this.axis });
        label.append(axis.short);
        input.addEventListener("change", () => { this.axis = axis.name; this.draw(); });
      }
    }

    addLegend() {
      const legend = html(this.controls, "div", "legend");
      this.study.curves.forEach((curve, index) => {
        const button = html(legend, "button", `k${curve.colour}${curve.dashed ? " dashed" : ""}`, curve.label);
        button.type = "button";
        button.setAttribute("aria-pressed", "true");
        button.addEventListener("click", () => {
          if (!this.hidden.delete(index)) this.hidden.add(index);
          button.setAttribute("aria-pressed", String(!this.hidden.has(index)));
          this.draw();
        });
      });
    }

    visible() {
      return this.study.curves.map((curve, index) => ({ curve, index })).filter(({ index }) => !this.hidden.has(index));
    }

    draw() {
      this.width = this.plot.clientWidth;
      const width = Math.max(this.width, 240), height = Math.round(Math.min(460, Math.max(300, width * 0.52)));
      const box = { left: 46, right: width - 14, top: 14, bottom: height - 46 };
      const svg = document.createElementNS(SVG, "svg");
      svg.setAttribute("class", "live");
      svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
      svg.setAttribute("role", "img");
      const axis = this.axes.find((one) => one.name === this.axis);
      svg.setAttribute("aria-label", `${this.study.metric} against ${axis.title}`);
      const curves = this.visible();
      this.fit(curves, box);
      this.drawAxes(svg, box, axis);
      this.drawBorders(svg, curves, box);
      if (this.axis === "bytes" && !this.hidden.size) this.drawFrontier(svg, box);
      for (const { curve, index } of curves) this.drawCurve(svg, curve, index);
      if (!curves.length) make(svg, "text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, "every curve is hidden");
      this.marks = make(svg, "g", {});
      this.box = box;
      this.plot.replaceChildren(svg, this.tip);
      this.show(null);
    }

    fit(curves, box) {
      let low = Infinity, high = -Infinity, right = 0, left = Infinity;
      for (const { curve } of curves) {
        curve.mean.forEach((mean, i) => {
          low = Math.min(low, mean - (curve.std[i] ?? 0));
          high = Math.max(high, mean + (curve.std[i] ?? 0));
          right = Math.max(right, curve[this.axis][i]);
          left = Math.min(left, curve[this.axis][i]);
        });
      }
      if (low > high) [low, high, right] = [0, 100, 1];
      const share = this.study.unit === "%", alone = low === high ? 0.02 * Math.max(Math.abs(low), Math.abs(high)) : 0;
      const air = Math.max(0.04 * (high - low), share ? 0.5 : alone);
      low = low >= 0 ? Math.max(0, low - air) : low - air;
      high = share && high <= 100 ? Math.min(100, high + air) : high + air;
      const log = this.axis === "bytes" && this.study.log_bytes && left > 0 && left < right;
      const x = log ? logScale(left, right, box.left, box.right - 6) : scale(0, right, box.left, box.right - 6);
      Object.assign(this, { low, high, left, right, log, x, y: scale(low, high, box.bottom, box.top) });
    }

    drawAxes(svg, box, axis) {
      for (const value of ticks(this.low, this.high, 5)) {
        const y = this.y(value).toFixed(1);
        make(svg, "path", { class: "grid", d: `M${box.left} ${y}H${box.right}` });
        make(svg, "text", { x: box.left - 7, y: Number(y) + 4.5, "text-anchor": "end" }, plain(value));
      }
      for (const value of this.log ? logTicks(this.left, this.right) : ticks(0, this.right, box.right < 520 ? 3 : 6)) {
        const label = shown[axis.name](value), x = Math.min(this.x(value), box.right - 3.4 * label.length);
        make(svg, "text", { x: x.toFixed(1), y: box.bottom + 19, "text-anchor": "middle" }, label);
      }
      make(svg, "path", { class: "base", d: `M${box.left} ${box.bottom}H${box.right}` });
      const middle = (box.left + box.right) / 2;
      make(svg, "text", { x: middle, y: box.bottom + 39, "text-anchor": "middle", class: "axis" }, axis.title);
      make(svg, "text", { transform: `translate(11 ${(box.top + box.bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, this.study.unit ? `${this.study.metric} (${this.study.unit})` : this.study.metric);
    }

    drawBorders(svg, curves, box) {
      const places = [];
      for (const { curve } of curves) {
        for (const border of curve.borders) {
          const x = this.x(border.at[this.axis]);
          make(svg, "path", { class: `border k${curve.colour}`, d: `M${x.toFixed(1)} ${box.top}V${box.bottom}` });
          places.push([x, border.stage]);
        }
      }
      const merged = [];
      for (const [x, stage] of places.sort((a, b) => a[0] - b[0])) {
        const last = merged[merged.length - 1];
        if (last && x - last.x < 58) { last.x = x; last.stages.add(stage); }
        else merged.push({ x, stages: new Set([stage]) });
      }
      for (const { x, stages } of merged) {
        const text = `stage ${[...stages].sort((a, b) => a - b).join(", ")}`, beyond = x + 7 * text.length > box.right;
        make(svg, "text", { class: "stage", x: beyond ? x - 4 : x + 4, y: box.bottom - 7, "font-size": 11.5, "text-anchor": beyond ? "end" : "start" }, text);
      }
    }

    drawFrontier(svg, box) {
      const steps = this.study.frontier.map(([bytes, best]) => [this.x(bytes).toFixed(1), this.y(best).toFixed(1)]);
      if (!steps.length) return;
      const way = steps.slice(1).map(([x, y]) => `H${x}V${y}`).join("");
      make(svg, "path", { class: "frontier", d: `M${steps[0].join(" ")}${way}H${box.right - 6}` });
    }

    drawCurve(svg, curve, index) {
      const group = make(svg, "g", { class: `curve k${curve.colour}${curve.dashed ? " dashed" : ""}`, "data-curve": index });
      const place = (i, shift) => `${this.x(curve[this.axis][i]).toFixed(1)} ${this.y(curve.mean[i] + shift * (curve.std[i] ?? 0)).toFixed(1)}`;
      const order = curve.mean.map((_, i) => i);
      if (curve.seeds > 1) {
        const edge = [...order.map((i) => place(i, 1)), ...order.slice().reverse().map((i) => place(i, -1))];
        make(group, "path", { class: "band", d: `M${edge.join("L")}Z` });
      }
      make(group, "path", { class: "line", d: `M${order.map((i) => place(i, 0)).join("L")}` });
      for (const i of order.filter((one) => curve.warmup[one])) {
        make(group, "circle", { class: "warm", r: 4, cx: this.x(curve[this.axis][i]), cy: this.y(curve.mean[i]) });
      }
    }

    hover(event) {
      const frame = this.plot.getBoundingClientRect(), x = event.clientX - frame.left, y = event.clientY - frame.top;
      let best = null, least = Infinity;
      for (const { curve, index } of this.visible()) {
        curve.mean.forEach((mean, i) => {
          const distance = (this.x(curve[this.axis][i]) - x) ** 2 + (this.y(mean) - y) ** 2;
          if (distance < least) { least = distance; best = { index, i }; }
        });
      }
      this.show(best);
    }

    key(event) {
      const curves = this.visible();
      if (!curves.length || !event.key.startsWith("Arrow")) return;
      event.preventDefault();
      let { index, i } = this.at ?? { index: curves[0].index, i: -1 };
      if (event.key === "ArrowRight") i += 1;
      if (event.key === "ArrowLeft") i -= 1;
      if (event.key === "ArrowUp" || event.key === "ArrowDown") {
        const now = curves.findIndex((one) => one.index === index), step = event.key === "ArrowDown" ? 1 : curves.length - 1;
        index = curves[(now + step) % curves.length].index;
      }
      this.show({ index, i: Math.max(0, Math.min(i, this.study.curves[index].mean.length - 1)) });
    }

    show(at) {
      this.at = at;
      this.marks.replaceChildren();
      this.tip.hidden = at === null;
      if (at === null) return;
      const curve = this.study.curves[at.index], x = this.x(curve[this.axis][at.i]), y = this.y(curve.mean[at.i]);
      make(this.marks, "path", { class: "cross", d: `M${x.toFixed(1)} ${this.box.top}V${this.box.bottom}` });
      make(this.marks, "circle", { class: `dot k${curve.colour}`, r: 6, cx: x, cy: y });
      this.fill(curve, at);
      const width = this.tip.offsetWidth, height = this.tip.offsetHeight;
      const left = x + 16 + width > this.plot.clientWidth ? Math.max(0, x - 16 - width) : x + 16;
      const top = Math.max(0, Math.min(y - height / 2, this.plot.clientHeight - height));
      this.tip.style.transform = `translate(${left.toFixed(0)}px, ${top.toFixed(0)}px)`;
    }

    fill(curve, { index, i }) {
      this.tip.replaceChildren();
      html(this.tip, "b", `k${curve.colour}`, curve.label);
      html(this.tip, "div", "value", metric(curve, i, this.study.unit));
      html(this.tip, "div", "", `round ${curve.round[i]}, stage ${curve.stage[i]}${curve.warmup[i] ? ", warm-up" : ""}`);
      html(this.tip, "div", "", `${shown.bytes(curve.bytes[i])}, ${shown.flops(curve.flops[i])}, ${duration(curve.seconds[i])}`);
      const cost = curve[this.axis][i], others = this.visible().filter((one) => one.index !== index);
      if (!others.length) return;
      const akin = (one) => (one.curve.colour === curve.colour ? 0 : 1);
      others.sort((one, two) => akin(one) - akin(two)).splice(5);
      const list = html(this.tip, "div", "others", "at this cost:");
      for (const { curve: other } of others) {
        const last = other[this.axis].filter((value) => value <= cost).length - 1;
        html(list, "div", "", `${other.label}: ${last < 0 ? "nothing yet" : metric(other, last, this.study.unit)}`);
      }
    }
  }

  const data = JSON.parse(document.getElementById("data").textContent);
  document.querySelectorAll("[data-panel]").forEach((place) => {
    const number = Number(place.dataset.panel);
    if (data.panels[number].curves.length) new Chart(place, data.panels[number], number);
  });
})();
