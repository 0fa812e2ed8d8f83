// Line charts over training steps, as SVG. Curves differ by their dashes as well as by their colours.

import { svg } from "./dom.js";

const WIDTH = 720, HEIGHT = 280, LEFT = 84, RIGHT = 34, TOP = 34, BOTTOM = 44;

/** Curves {name: [[step, value], …]}, and with `mark` a line at this step. Null when there is no point. */
export function lineChart(title, curves, { mark = null } = {}) {
  const drawn = Object.entries(curves).map(([name, points]) => [name, points.filter((point) => point.every(Number.isFinite))])
    .filter(([, points]) => points.length);
  if (!drawn.length) return null;
  const [steps, values] = [0, 1].map((axis) => drawn.flatMap(([, points]) => points.map((point) => point[axis])));
  const across = ticks(0, Math.max(...steps, mark ?? 0)), up = ticks(Math.min(...values), Math.max(...values));
  const x = (step) => (LEFT + (WIDTH - LEFT - RIGHT) * (step / across.at(-1))).toFixed(1);
  const y = (value) => (HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * ((value - up[0]) / (up.at(-1) - up[0]))).toFixed(1);
  const label = (left, top, anchor, text) => svg("text", { x: left, y: top, "text-anchor": anchor }, text);
  let start = LEFT;
  const said = `${title}, over steps: ${drawn.map(([name]) => name).join(", ")}`;
  return svg("svg", { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": said },
    up.map((value) => [
      svg("path", { class: "rule", d: `M${LEFT} ${y(value)}H${WIDTH - RIGHT}` }),
      label(LEFT - 6, Number(y(value)) + 5, "end", short(value)),
    ]),
    across.map((step) => label(x(step), HEIGHT - BOTTOM + 19, "middle", short(step))),
    label(WIDTH / 2, HEIGHT - 4, "middle", "step"),
    mark !== null && svg("path", { class: "mark", d: `M${x(mark)} ${TOP}V${HEIGHT - BOTTOM}` }),
    drawn.map(([name, points], index) => {
      const left = start;
      start += 62 + 12 * name.length;
      const [[step, value]] = points;
      return [
        svg("path", { class: `curve c${index}`, d: `M${left} 14h32` }), label(left + 38, 19, "start", name),
        points.length > 1
          ? svg("polyline", { class: `curve c${index}`, points: points.map((point) => `${x(point[0])},${y(point[1])}`).join(" ") })
          : svg("circle", { class: `curve c${index}`, cx: x(step), cy: y(value), r: 3 }),
      ];
    }));
}

const short = (value) => value.toLocaleString("en", { maximumSignificantDigits: 4 });

/** Three to seven round numbers from at most `low` to at least `high`, at distances of 1, 2 or 5 times a power of ten. */
export function ticks(low, high) {
  if (high <= low) [low, high] = [low - (Math.abs(low) || 1) / 2, high + (Math.abs(high) || 1) / 2];
  const power = 10 ** Math.floor(Math.log10(high - low));
  for (const distance of [0.2, 0.5, 1, 2, 5].map((factor) => factor * power)) {
    const first = Math.floor(low / distance), last = Math.ceil(high / distance);
    if (last - first <= 6) return Array.from({ length: last - first + 1 }, (_, place) => (first + place) * distance);
  }
  return [low, high];
}
