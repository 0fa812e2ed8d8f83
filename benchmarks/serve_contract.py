"""What schemathesis finds when it asks a server everything that its OpenAPI document allows, and much that it does not.

    python benchmarks/serve_contract.py http://127.0.0.1:5000 --examples 200 --seeds 1 2 3

Six routes get a run of their own without the check that everything allowed is accepted, for a schema cannot say "a .txt file in UTF-8",
that n_best is at most beam, that two lists are of one length, how many pieces a text has, nor how many tokens of a prompt leave room in a
model.
The exit status is that of the worst run. Needs schemathesis (pip install 'dragoman[dev]').
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

from served import about, finish

APART = ("/translate_file", "/api/v1/translate", "/api/v1/stream", "/api/v1/score", "/api/v1/explain", "/v1/completions")


def main() -> int:
    """Runs schemathesis for each seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", help="of a running server, such as http://127.0.0.1:5000")
    parser.add_argument("--examples", type=int, default=200, help="requests of a kind")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    program = Path(sys.executable).with_name("st")
    common = [str(program), "run", f"{options.address}/openapi.json", "--checks", "all", "-n", str(options.examples)]
    common += ["--no-color", "--request-timeout", "120", "--max-response-time", "60"]
    worst, runs = 0, []
    for seed in options.seeds:
        for routes, more in (
            ("all others", [part for path in APART for part in ("--exclude-path", path)]),
            (
                ", ".join(APART),
                [*(part for path in APART for part in ("--include-path", path)), "--exclude-checks", "positive_data_acceptance"],
            ),
        ):
            command = [*common, "--seed", str(seed), *more]
            print("$", *command[1:], flush=True)
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
            print(done.stdout, flush=True)
            cases = next((line.strip() for line in done.stdout.splitlines() if re.search(r"\d+ generated", line)), "")
            runs.append({"seed": seed, "routes": routes, "status": done.returncode, "cases": cases})
            worst = max(worst, done.returncode)
    facts = {**about(options), "seed": options.seeds, "examples": options.examples, "runs": runs}
    facts["command"] = facts["command"].replace(Path(options.address).name, "ADDRESS")
    finish(facts, options.output)
    return worst


if __name__ == "__main__":
    sys.exit(main())
