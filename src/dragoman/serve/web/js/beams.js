// Beams: the finished hypotheses, why each is behind the best, and the tree of what the search kept and let go (Section 6.1).

import { drawn, fill, find, h, refill, tableOf, wide } from "./dom.js";
import { look } from "./state.js";

export const on = ["explanation"];

export function show({ explanation }) {
  refill(find("beams"), explanation.candidates ? [
    h("p.sentence", { dir: "auto" }, explanation.source.text),
    candidates(explanation),
    h("h2", "The tree of the search"),
    h("p.dim", "A column is a step. Lines lead to what was kept, dotted ones to the next best, which were let go; ■ is an end. ",
      "The way of the chosen candidate stands out."),
    wide("The tree of the search", drawn(explanation.pictures.tree)),
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
