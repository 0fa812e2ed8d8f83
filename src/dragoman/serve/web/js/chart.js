// Line charts over training steps, as SVG. Curves differ by their dashes as well as by colour.

import { number, svg } from "./dom.js";

const WIDTH = 720, HEIGHT = 280, LEFT = 66, RIGHT = 14, TOP = 34, BOTTOM = 44;

/** An SVG of curves {name: [[step, value], …]}; with `mark`, a step, a line at it. Null when there is no point. */
export function lineChart(title, curves, { mark = null } = {}) {
  const drawn = Object.entries(curves).map(([name, points]) => [name, points.filter((point) => point.every(Number.isFinite))])
    .filter(([, points]) => points.length);
  if (!drawn.length) return null;
  const steps = drawn.flatMap(([, points]) => points.map(([step]) => step)), values = drawn.flatMap(([, points]) => points.map(([, value]) => value));
  const across = ticks(0, Math.max(...steps, mark ?? 0)).filter((step) => step >= 0), up = ticks(Math.min(...values), Math.max(...values));
  const x = (step) => LEFT + (WIDTH - LEFT - RIGHT) * (step / across.at(-1));
  const y = (value) => HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * ((value - up[0]) / (up.at(-1) - up[0]));
  let start = LEFT;
  return svg("svg", { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${title}, over steps: ${drawn.map(([name]) => name).join(", ")}` },
    up.map((value) => [
      svg("path", { class: "rule", d: `M${LEFT} ${y(value)}H${WIDTH - RIGHT}` }),
      svg("text", { x: LEFT - 6, y: y(value) + 5, "text-anchor": "end" }, short(value)),
    ]),
    across.map((step) => svg("text", { x: x(step), y: HEIGHT - BOTTOM + 19, "text-anchor": "middle" }, short(step))),
    svg("text", { x: (LEFT + WIDTH - RIGHT) / 2, y: HEIGHT - 4, "text-anchor": "middle" }, "step"),
    mark !== null && svg("path", { class: "mark", d: `M${x(mark)} ${TOP}V${HEIGHT - BOTTOM}` }),
    drawn.map(([name, points], index) => {
      const at = start;
      start += 62 + 8 * name.length;
      return [
        svg("path", { class: `curve c${index}`, d: `M${at} 14h32` }), svg("text", { x: at + 38, y: 19 }, name),
        points.length > 1
          ? svg("polyline", { class: `curve c${index}`, points: points.map(([step, value]) => `${x(step).toFixed(1)},${y(value).toFixed(1)}`).join(" ") })
          : svg("circle", { class: `dot c${index}`, cx: x(points[0][0]), cy: y(points[0][1]), r: 4 }),
      ];
    }));
}

const short = (value) => (Math.abs(value) >= 1 || value === 0 ? number(Number(value.toFixed(2)), 2).replace(/\.?0+$/, (end) => (end.startsWith(".") ? "" : end)) : String(Number(value.toPrecision(3))));

/** Three to seven round numbers from at most `low` to at least `high`, at distances of 1, 2 or 5 times a power of ten. */
export function ticks(low, high) {
  if (high <= low) [low, high] = [low - (Math.abs(low) || 1) / 2, high + (Math.abs(high) || 1) / 2];
  const power = 10 ** Math.floor(Math.log10(high - low));
  for (const distance of [0.2, 0.5, 1, 2, 5].map((factor) => factor * power)) {
    const first = Math.floor(low / distance), last = Math.ceil(high / distance);
    if (last - first <= 6) return Array.from({ length: last - first + 1 }, (_, at) => (first + at) * distance);
  }
  return [low, high];
}
