"""What schemathesis finds when it asks a server everything that its OpenAPI document allows, and much that it does not.

    python benchmarks/serve_contract.py http://127.0.0.1:5000 --examples 200 --seeds 1 2 3

The file route and the one that looks inside get a run of their own without the check that everything allowed is accepted, for a schema
cannot say "a .txt file in UTF-8", or how many pieces a text has.
The exit status is that of the worst run. Needs schemathesis (pip install 'dragoman[dev]').
"""

import argparse
import subprocess
import sys
from pathlib import Path


def main() -> int:
    """Runs schemathesis for each seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", help="of a running server, such as http://127.0.0.1:5000")
    parser.add_argument("--examples", type=int, default=200, help="requests of a kind")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    options = parser.parse_args()
    program = Path(sys.executable).with_name("st")
    common = [str(program), "run", f"{options.address}/openapi.json", "--checks", "all", "-n", str(options.examples), "--no-color"]
    worst = 0
    for seed in options.seeds:
        for more in (
            ["--exclude-path", "/translate_file", "--exclude-path", "/api/v1/explain"],
            ["--include-path", "/translate_file", "--include-path", "/api/v1/explain", "--exclude-checks", "positive_data_acceptance"],
        ):
            command = [*common, "--seed", str(seed), *more]
            print("$", *command[1:], flush=True)
            worst = max(worst, subprocess.run(command).returncode)
    return worst


if __name__ == "__main__":
    sys.exit(main())
