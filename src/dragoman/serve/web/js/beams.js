// Beams: the finished hypotheses, why each is behind the best, and the tree of what the search kept and let go (Section 6.1).

import { fill, find, h, number, refill, short, tableOf, wide } from "./dom.js";
import { look } from "./state.js";

const BOX = 104, LINE = 26, LETTERS = 10; // of the tree: width of a step, height of a node, letters of a piece

export const on = ["explanation"];

export function show({ explanation }) {
  refill(find("beams"), explanation.candidates ? [
    h("p.sentence", { dir: "auto" }, explanation.source.text),
    candidates(explanation),
    h("h2", "The tree of the search"),
    h("p.dim", "A column is a step. Lines lead to what was kept, dotted ones to the next best, which were let go; ■ is an end. ",
      "The way of the chosen candidate stands out."),
    wide("The tree of the search", tree(explanation)),
    h("details", h("summary", "The tree in words"), tableOf(explanation.tables.tree)),
  ] : h("p", "This model reads one text and searches for nothing, so there are no beams."));
}

function candidates({ tables, chosen, asked: { reference } }) {
  const made = tableOf(tables.candidates), rows = made.querySelectorAll("tbody tr");
  rows.forEach(({ cells: [cell] }, rank) => fill(cell, h("label", h("input", {
    type: "radio", name: "candidate", id: `b-${rank}`, checked: rank === chosen, onchange: () => look({ chosen: rank, reference }),
  }), ` ${rank + 1}`)));
  rows[chosen].className = "chosen";
  return made;
}

/** `way` are the places of the chosen nodes in their steps. */
export function layout(steps, way) {
  const rows = Math.max(0, ...steps.map(({ nodes }) => nodes.length));
  const placed = steps.map(({ nodes }, step) => nodes.map(([parent, piece, logprob, kept, total, ended], place) => ({
    parent, piece, logprob, kept, total, ended, x: 8 + BOX * step, y: 40 + LINE * place,
    chosen: way[step] === place && (step === 0 || way[step - 1] === parent),
  })));
  const nodes = placed.flat();
  const edges = placed.flatMap((ends, step) => ends.filter(({ parent }) => parent !== null)
    .map((to) => ({ from: placed[step - 1][to.parent], to })));
  return { width: BOX * steps.length + 40, height: LINE * rows + 36, nodes, edges };
}

function tree({ beam_tree: steps, candidates: all, chosen }) {
  const { width, height, nodes, edges } = layout(steps, all[chosen].path);
  const mark = (name, node) => `${name}.${node.chosen ? "chosen" : node.kept ? "kept" : "let-go"}`;
  const said = `${steps.length} steps, ${nodes.filter(({ kept }) => kept).length} continuations were kept`;
  return h("svg.tree", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": said },
    steps.map((_, step) => h("text.let-go", { x: 8 + BOX * step, y: 16 }, step + 1)),
    edges.map(({ from, to }) => h(mark("path", to), { d: `M${from.x + BOX - 18} ${from.y - 5}L${to.x - 4} ${to.y - 5}` })),
    nodes.map((node) => {
      const { piece, logprob, total, kept, ended, x, y } = node;
      const told = `“${piece}”: log p ${number(logprob, 3)}, in all ${number(total, 3)}, ${kept ? "kept" : "let go"}`;
      return h(mark("text", node), { x, y }, h("title", told), ended && "■ ", short(piece, LETTERS));
    }));
}
