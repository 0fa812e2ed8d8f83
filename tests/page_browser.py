"""For tests of the page: a small run to serve, and what is often done in the browser."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dragoman.bundle import Bundle, save_bundle
from small_bundles import fx_toy

TEXT = "ona bek tilu rem"
MARKUP = "ona <img src=x onerror=alert(1)> bek"
SAMPLE = {"source": MARKUP, "reference": "KEB ANO", "output": "KEB ANO"}
TRAINING = [
    {"t": "train", "step": step, "loss": 4 / step, "ppl": 2.0, "lr": 1e-4 * step, "grad_norm": 0.5, "tok_s": 900.0} for step in (1, 2, 4)
]
EVALUATIONS = [
    {"t": "eval", "step": 2, "loss": 2.5, "ppl": 12.25, "bleu": 31.5, "chrf": 50.25, "samples": [{**SAMPLE, "output": "KEB"}]},
    {"t": "eval", "step": 4, "loss": 1.5, "ppl": 4.5, "bleu": 62.0, "chrf": 70.5, "samples": [SAMPLE]},
]


def write_run(folder: Path, *, bundle: Bundle | None = None, status: str = "done", source: str = "en", target: str = "de") -> Path:
    """A run folder of FX-TOY, or another bundle, between two languages, with a short log."""
    bundle = bundle or fx_toy()
    config = bundle.config.with_values(data={"source": source, "target": target})
    save_bundle(replace(bundle, config=config, info={"step": 4}), folder / "checkpoints" / "step-000004")
    for name in ("best", "last"):
        (folder / "checkpoints" / name).write_text("step-000004\n")
    facts = {"status": status, "settings": config.model_dump(mode="json"), "best_step": 4}
    (folder / "run.json").write_text(json.dumps(facts))
    (folder / "log.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in (*TRAINING, *EVALUATIONS)))
    return folder


def expected(message: Any) -> bool:
    """Whether a message of the browser is a complaint; that a request was refused, which the page itself tells, is none."""
    return message.type in ("error", "warning") and not message.text.startswith("Failed to load resource")


def translate(page: Any, text: str) -> None:
    """Types a text, translates it, and waits until its pieces have their ids."""
    page.fill("#text", text)
    page.keyboard.press("Control+Enter")
    page.wait_for_selector("#translate .token[title*=', id ']")


def module(page: Any, name: str, body: str, argument: Any = None) -> Any:
    """What a function body makes of a module ``m`` of the page and an argument ``a``, in the browser."""
    return page.evaluate(f"async (a) => {{ const m = await import(new URL('web/js/{name}.js', location.href)); {body} }}", argument)


def faults_of(page: Any, *rules: str) -> list[str]:
    """What axe finds wrong with what is shown, by all its rules or by these."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed; pip install axe-playwright-python")
    found = axe.Axe().run(page, options={"runOnly": list(rules)} if rules else None).response["violations"]
    return [f"{each['id']}: {node['html'][:200]} {node.get('failureSummary', '')}" for each in found for node in each["nodes"]]
