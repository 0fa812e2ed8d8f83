// Line charts over training steps, as SVG. Curves differ by their dashes as well as by their colours.

import { h } from "./dom.js";

const WIDTH = 720, HEIGHT = 280, LEFT = 84, RIGHT = 34, TOP = 34, BOTTOM = 44;

/** Curves {name: [[step, value], …]}, and a line at the step `mark`; null when there is no point. */
export function lineChart(title, curves, mark) {
  const drawn = Object.entries(curves).map(([name, points]) => [name, points.filter((point) => point.every(Number.isFinite))])
    .filter(([, points]) => points.length);
  if (!drawn.length) return null;
  const all = drawn.flatMap(([, points]) => points), values = all.map(([, value]) => value);
  const across = ticks(0, Math.max(mark ?? 0, ...all.map(([step]) => step))), up = ticks(Math.min(...values), Math.max(...values));
  const x = (step) => (LEFT + (WIDTH - LEFT - RIGHT) * (step / across.at(-1))).toFixed(1);
  const y = (value) => (HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * ((value - up[0]) / (up.at(-1) - up[0]))).toFixed(1);
  const label = (x, y, anchor, text) => h("text", { x, y, "text-anchor": anchor }, text);
  const path = (name, d) => h(`path.${name}`, { d });
  let start = LEFT;
  const said = `${title}, over steps: ${drawn.map(([name]) => name).join(", ")}`;
  return h("svg.chart", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": said },
    up.map((value) => [path("rule", `M${LEFT} ${y(value)}H${WIDTH - RIGHT}`), label(LEFT - 6, Number(y(value)) + 5, "end", few(value))]),
    across.map((step) => label(x(step), HEIGHT - BOTTOM + 19, "middle", few(step))),
    label(WIDTH / 2, HEIGHT - 4, "middle", "step"),
    mark && path("mark", `M${x(mark)} ${TOP}V${HEIGHT - BOTTOM}`),
    drawn.map(([name, points], index) => {
      const left = start, curve = `curve.c${index}`, [[step, value]] = points;
      start += 62 + 12 * name.length;
      return [
        path(curve, `M${left} 14h32`), label(left + 38, 19, "start", name),
        points.length > 1 ? path(curve, `M${points.map(([step, value]) => `${x(step)} ${y(value)}`).join("L")}`)
          : h(`circle.${curve}`, { cx: x(step), cy: y(value), r: 3 }),
      ];
    }));
}

const few = (value) => value.toLocaleString("en", { maximumSignificantDigits: 4 });

/** Three to seven round numbers around both, at distances of 1, 2 or 5 times a power of ten. */
export function ticks(low, high) {
  if (high <= low) [low, high] = [low - (Math.abs(low) || 1) / 2, high + (Math.abs(high) || 1) / 2];
  const power = 10 ** Math.floor(Math.log10(high - low));
  for (const distance of [0.2, 0.5, 1, 2, 5].map((factor) => factor * power)) {
    const first = Math.floor(low / distance), last = Math.ceil(high / distance);
    if (last - first <= 6) return Array.from({ length: last - first + 1 }, (_, place) => (first + place) * distance);
  }
}
