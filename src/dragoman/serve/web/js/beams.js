// Beams: the finished hypotheses, why each is behind the best, and the tree of what the search kept and let go (Section 6.1).

import { fill, h, number, shown, svg, table } from "./dom.js";
import { look } from "./look.js";

const BOX = 104, LINE = 26, LETTERS = 10; // of the tree: width of a step, height of a node, letters of a piece
let store, body, drawn;

export const view = {
  name: "beams",

  mount(section, itsStore) {
    store = itsStore;
    section.append(body = h("div"));
  },

  show({ explanation }) {
    if (drawn === explanation) return;
    drawn = explanation;
    if (!explanation.candidates) {
      fill(body, h("p", {}, "This model reads one text and searches for nothing, so there are no beams."));
      return;
    }
    const focused = document.activeElement?.name === "candidate";
    fill(body,
      h("p", { class: "sentence", dir: "auto" }, explanation.source.text),
      candidates(explanation),
      h("h2", {}, "The tree of the search"),
      h("p", { class: "dim" }, "A column is a step. Lines lead to what was kept, dotted ones to the next best, which were let go; ",
        "■ is an end. The way of the chosen candidate stands out."),
      h("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "The tree of the search" }, tree(explanation)),
      h("details", {}, h("summary", {}, "The tree in words"), inWords(explanation)));
    if (focused) body.querySelector(":checked").focus();
  },
};

function candidates(explanation) {
  const { candidates: all, chosen, beam, alpha, asked: { reference } } = explanation;
  const radio = (rank) => h("label", {}, h("input", {
    type: "radio", name: "candidate", checked: rank === chosen, onchange: () => look(store, { chosen: rank, reference }),
  }), ` ${rank + 1}`);
  const rows = all.map((each, rank) => [
    radio(rank), each.finished ? each.text : `${each.text} (ended by ${each.stop})`,
    [number(each.score, 4)], [number(each.logprob, 4)], [number(each.lp, 4)], [number(each.pieces.length)], why(explanation, rank),
  ]);
  const made = table(`Finished hypotheses, total = log P / lp, beam ${beam}, α = ${alpha}. The other views show the chosen one.`,
    ["rank", "text", "total", "log P", "lp", "tokens", "why it is not the first"], rows);
  made.querySelectorAll("tbody tr")[chosen].className = "chosen";
  return made;
}

/** Why a candidate is behind the best, in words. */
export function why({ candidates: all, beam_tree: steps }, rank) {
  const [best, own] = [all[0], all[rank]];
  if (rank === 0) return "it is the first";
  if (own.behind_from === null) {
    const longer = own.pieces.length > best.pieces.length ? "longer" : "shorter";
    return `it is more probable, but ${longer}: the length penalty decides`;
  }
  const at = own.behind_from;
  const sum = ({ path }) => {
    const step = Math.min(at, path.length - 1); // a shorter one has all of its sum by then
    return number(steps[step].nodes[path[step]][4], 2);
  };
  return `it fell behind at token ${at + 1}, “${shown(own.pieces[at])}”: log P so far ${sum(own)}, of the first ${sum(best)}`;
}

/** Where nodes and the lines between them lie: {width, height, nodes: [{x, y, step, place, …}], edges: [{from, to, …}]}. */
export function layout(steps, way) {
  const rows = Math.max(0, ...steps.map(({ nodes }) => nodes.length));
  const placed = steps.map(({ nodes }, step) => nodes.map(([parent, piece, logprob, kept, total, ended], place) => ({
    step, place, parent, piece, logprob, kept, total, ended, x: 8 + BOX * step, y: 40 + LINE * place,
    chosen: way[step] === place && (step === 0 || way[step - 1] === parent),
  })));
  const edges = placed.flatMap((nodes, step) => nodes.filter(({ parent }) => parent !== null)
    .map((to) => ({ from: placed[step - 1][to.parent], to })));
  return { width: BOX * steps.length + 40, height: LINE * rows + 36, nodes: placed.flat(), edges };
}

const short = (text) => ([...text].length > LETTERS ? `${[...text].slice(0, LETTERS - 1).join("")}…` : text);

function tree({ beam_tree: steps, candidates: all, chosen }) {
  const { width, height, nodes, edges } = layout(steps, all[chosen].path);
  const kept = nodes.filter((node) => node.kept).length;
  const mark = (node) => (node.chosen ? "chosen" : node.kept ? "kept" : "let-go");
  const title = ({ piece, logprob, total, ...node }) =>
    svg("title", {}, `“${piece}”: log p ${number(logprob, 3)}, in all ${number(total, 3)}, ${node.kept ? "kept" : "let go"}`);
  const said = `${steps.length} steps, ${kept} continuations were kept`;
  return svg("svg", { class: "tree", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": said },
    steps.map((_, step) => svg("text", { class: "let-go", x: 8 + BOX * step, y: 16 }, String(step + 1))),
    edges.map(({ from, to }) => svg("path", { class: mark(to), d: `M${from.x + BOX - 18} ${from.y - 5}L${to.x - 4} ${to.y - 5}` })),
    nodes.map((node) => svg("text", { class: mark(node), x: node.x, y: node.y },
      title(node), `${node.ended ? "■ " : ""}${short(shown(node.piece))}`)));
}

function inWords({ beam_tree: steps }) {
  const said = (nodes, wanted) => nodes.filter(([, , , kept]) => kept === wanted)
    .map(([, piece, , , total]) => `${shown(piece)} ${number(total, 2)}`).join(" · ");
  const rows = steps.map(({ nodes }, step) => [step + 1, said(nodes, true), said(nodes, false)]);
  return table("Each continuation with the log P of the whole up to it", ["step", "kept", "let go"], rows);
}
