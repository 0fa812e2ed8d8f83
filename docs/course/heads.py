"""What the heads of a trained translator look at in one sentence: the numbers of the course's page "Heads", in heads.json.

    python heads.py runs/en-de --output heads.json
    python heads.py runs/en-de --text "Two dogs play."

The model is a run folder, a checkpoint or a bundle of `dragoman train`. Weights are rounded to three places; of the run stands in the file
which settings made it, not its text.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np

from dragoman import load_bundle
from dragoman.explain.answer import explain
from dragoman.explain.attention import head_habits

TEXT = "A man in a red shirt rides a brown horse along the beach."


def main() -> None:
    """Takes the sentence through the model, and prints or writes what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a run folder, a checkpoint or a bundle")
    parser.add_argument("--text", default=TEXT)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    bundle = load_bundle(options.model)
    found = explain(bundle, options.text)
    facts = {
        "command": " ".join(["python", "docs/course/heads.py", *sys.argv[1:]]),
        "preset": bundle.config.preset,
        "text": options.text,
        "pieces": found.keys("encoder"),
        "translation": found.queries("cross"),
        **{kind: np.round(found.weights(kind).astype(float), 3).tolist() for kind in ("encoder", "cross")},
    }
    if options.output:
        options.output.write_text(json.dumps(facts, ensure_ascii=False) + "\n", encoding="utf-8")
    for kind in ("encoder", "cross"):
        for number, layer in enumerate(found.weights(kind), start=1):
            for habit in head_habits(layer):
                mostly = f"  {habit['mostly']} at {habit['share']:.0%}" if habit["mostly"] else ""
                print(f"{kind} {number}.{habit['head'] + 1}: strongest weight {habit['focus']:.2f}{mostly}")


if __name__ == "__main__":
    main()
