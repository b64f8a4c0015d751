"""Names, notes and texts that are HTML show as text on every page that a command writes."""

from __future__ import annotations

import html
import json
import re
import shutil
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

import tilesmith as ts
from hostile_pages import EVIL, hostile, require_harmless
from tilesmith.cli.tour import _page as tour_page
from tilesmith.cli.tour_chapters.chapter import Chapter, Told
from tilesmith.lab.bench.output.page import write_html as bench_page
from tilesmith.lab.bench.survey.page import write_html as survey_page
from tilesmith.lab.profile.profile_call import Profile
from tilesmith.lab.profile.summary import Entry, Summary
from tilesmith.lab.report.content import Facts, Headline, Listing, Points
from tilesmith.toolchain.machine import Machine
from tilesmith.training.proof.report import proof_page
from tilesmith.training.results.report import comparison_page, run_page

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")


def _stored(path: str) -> Any:
    return json.loads((ROOT / "benchmarks" / path).read_text())


def _bench() -> str:
    result = _stored("results/add_rms_norm-h200.json")
    page, keys = hostile(bench_page, result)
    assert {"op", "device", "case"} <= keys
    return page


def _survey() -> str:
    survey = _stored("surveys/attention-unlisted-h200.json")
    page, keys = hostile(survey_page, survey)
    assert {"op", "device"} <= keys
    return page


def _proof() -> str:
    one = {"name": "patched", "losses": [2.0, 1.5], "gradient_norms": [1.0, 0.5], "step_ms": 2.0, "peak_bytes": None}
    difference = {"what": "loss", "where": "step 3", "patched": 1e-3, "other_rounding": 1e-3, "allowed": 1e-6}
    proof = {
        "model": "a model", "family": "llama", "parameters": 10, "device": "a device", "is_rounding": False,
        "runs": [one, {**one, "name": "plain"}], "patch": {"swapped": {EVIL: 3}, "left": {EVIL: "a reason"}},
        "settings": {"dtype": "float32", "steps": 2, "batch_size": 1, "seq_len": 8, "learning_rate": 0.1, "seed": 0},
        "differences": [difference | {"passed": False}],
    }  # fmt: skip
    page, keys = hostile(proof_page, proof)
    assert {"model", "family", "device", "name", "what", "where"} <= keys
    return page


def _checked() -> str:
    found = ts.lab.check(ts.ops.silu, cases=["one"], dtypes=["float32"])
    texts = {part.name for part in fields(found[0]) if isinstance(getattr(found[0], part.name), str)}
    changes: dict[str, Any] = {**dict.fromkeys(texts, EVIL), "passed": False}
    evil = tuple(replace(one, **changes) for one in found)
    frame = replace(found, op=EVIL, results=evil, left_out=(EVIL,))._repr_html_()
    (page,) = re.findall(r'srcdoc="([^"]*)"', frame)
    return html.unescape(page)


def _profile() -> str:
    summary = Summary(EVIL, [Entry(EVIL, calls=1, total_us=1.0)], notes=[EVIL], files=[(EVIL, EVIL)])
    return Profile(summary, EVIL, ("python", EVIL), 0).html()


def _tour() -> str:
    machine = Machine(EVIL, EVIL, EVIL, None, False, (EVIL,), (EVIL,), (EVIL,))
    told = Told([Points([EVIL]), Facts({EVIL: EVIL}), Listing(EVIL)], headlines=[Headline(EVIL, EVIL, "bad")])
    return tour_page(machine, [(Chapter(EVIL, EVIL, lambda _: told), told)], 1.0)


def test_no_text_of_a_result_runs_in_a_browser(tmp_path: Path) -> None:
    compared = _stored("results/models/llama-h200.json")
    pages = {
        "bench": _bench(),
        "survey": _survey(),
        "prove": _proof(),
        "train": hostile(run_page, compared["variants"][0] | {"device": compared["device"]})[0],
        "compare": hostile(comparison_page, compared)[0],
        "check": _checked(),
        "profile": _profile(),
        "tour": _tour(),
    }
    require_harmless(pages, tmp_path)


def test_a_script_that_runs_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="ran a script from a name"):
        require_harmless({"page": f"<p>{EVIL}</p>"}, tmp_path)
