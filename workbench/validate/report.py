"""The report: one self-contained HTML page, and the same in Markdown, from the JSON files of a run or of a publication.

No server, no script, no file beside the page: figures are inline SVG. Whatever is not there (the search, the learning
curve) is left out with its heading.
"""

from pathlib import Path
from typing import Any

from workbench.console import console
from workbench.corpus.prompts import GENERATED
from workbench.files import read_json, write_text
from workbench.pages import render_template
from workbench.validate import figures
from workbench.validate.table import (
    render_estimate,
    render_hit_rate,
    render_layers,
    render_losslessness,
    value_of,
)

HTML_FILE, MARKDOWN_FILE = "report.html", "report.md"
_PACKAGE = "workbench.validate"
_POSITIONS = 16
"""Most draft positions of a table; the figures show all."""


def write_report(folder: Path) -> Path:
    """Writes report.html and report.md into a run folder or any folder that holds a validation.json.

    Returns:
        The path of the page.
    """
    validation = _find(folder, "validate", "validation.json")
    view = build_view(
        validation if validation is not None else read_json(folder / "validation.json"),
        _find(folder, "prune", "search.json"),
        _find(folder, "distill", "distill.json"),
    )
    write_text(folder / MARKDOWN_FILE, render_template(_PACKAGE, MARKDOWN_FILE, view))
    write_text(folder / HTML_FILE, render_template(_PACKAGE, HTML_FILE, view))
    console.print(f"report: {folder / HTML_FILE}", markup=False)
    return folder / HTML_FILE


def build_view(
    validation: dict[str, Any], search: dict[str, Any] | None, distillation: dict[str, Any] | None
) -> dict[str, Any]:
    """Everything that both forms of the report show, as text, tables and figures."""
    methods = validation["methods"]
    suites = list(next(iter(methods.values())))
    speculative = {
        name: cells for name, cells in methods.items() if any("acceptance_by_position" in c for c in cells.values())
    }
    return {
        "title": f"{validation['recipe']}: a drafter for {validation['target']['identity']}",
        "date": validation["date"].replace("T", " ")[:16] + " UTC",
        "warnings": validation["warnings"],
        "lossless": validation["lossless"],
        "candidate_method": validation["candidate_method"],
        "headlines": [_headline(validation, suite) for suite in suites] if validation["candidate_method"] else [],
        "suites": [
            {
                "name": suite,
                "source": _source(validation, suite),
                "rows": [_row(validation, name, suite) for name in methods],
                "end_to_end": [_latency_row(name, cells[suite]) for name, cells in methods.items()],
                "divergences": _divergences(methods, suite),
                "comparisons": _comparisons(validation, suite),
                "positions": _position_rows(speculative, suite),
                "rounds": _round_rows(speculative, suite),
                "rounds_figure": _rounds_figure(speculative, suite),
                "hits": _hit_rows(methods, suite),
                "hits_figure": _hits_figure(methods, suite),
                "other_engine": _other_engine(validation, suite),
                "reasons": _reasons(validation, suite),
                "domains": _domain_rows(speculative, suite),
            }
            for suite in suites
        ],
        "speedups_figure": figures.draw_speedups(suites, methods),
        "acceptance_figure": _acceptance_figure(methods, validation["candidate_method"]),
        "temperatures": _temperature_rows(validation),
        "memory": _memory_rows(validation),
        "search": _search_view(search),
        "curve": _curve_view(distillation),
        "configuration": _configuration(validation),
        "machine": _machine(validation),
    }


def _find(folder: Path, stage: str, name: str) -> dict[str, Any] | None:
    """A stage's file, at the top of the folder or in the stage's own."""
    for path in (folder / name, folder / stage / name):
        if path.is_file():
            return read_json(path)
    return None


def _headline(validation: dict[str, Any], suite: str) -> dict[str, str]:
    """What one reads first: the candidate's numbers on one suite, and what they rest on."""
    methods, candidate = validation["methods"], validation["candidate_method"]
    cell = methods[candidate][suite]
    sentences = [
        f"{value_of(cell['tokens_per_second']):.0f} tokens a second against "
        f"{value_of(methods['autoregressive'][suite]['tokens_per_second']):.0f} of plain decoding"
    ]
    if "speedup_whole_machine" in cell:
        sentences.append(
            f"{render_estimate(cell['speedup_whole_machine'], suffix='x')} against it on the whole machine"
        )
    for comparison in validation["comparisons"]:
        than = {"synchronous": "synchronous drafting", "dflash": "DFlash"}.get(comparison["than"])
        if than and comparison["suite"] == suite:
            sentences.append(f"{render_estimate(comparison['speed_ratio'], suffix='x')} against {than}")
    return {
        "suite": suite,
        "speedup": f"{value_of(cell['speedup']):.2f}x",
        "interval": "{:.2f} to {:.2f}".format(*cell["speedup"]["ci95"]),
        "acceptance_length": f"{value_of(cell['acceptance_length']):.2f}",
        "hit_rate": render_hit_rate(cell),
        "layers": render_layers(validation, candidate),
        "lossless": render_losslessness(cell),
        "text": "; ".join(sentences) + ".",
    }


def _row(validation: dict[str, Any], method: str, suite: str) -> dict[str, str]:
    cell, details = validation["methods"][method][suite], validation["method_details"][method]
    return {
        "method": method,
        "layers": render_layers(validation, method),
        "engine": details["engine"],
        "threads": str(details["target_threads"]),
        "acceptance_length": render_estimate(cell.get("acceptance_length")),
        "tokens_per_second": render_estimate(cell["tokens_per_second"], digits=1),
        "speedup": render_estimate(cell["speedup"], suffix="x"),
        "speedup_whole_machine": render_estimate(cell.get("speedup_whole_machine"), suffix="x"),
        "speedup_transformers": render_estimate(cell.get("speedup_transformers"), suffix="x"),
        "hit_rate": render_hit_rate(cell),
        "lossless": render_losslessness(cell),
        "is_lossless": "no" if cell["lossless"] is False else "yes",
    }


def _latency_row(method: str, cell: dict[str, Any]) -> dict[str, str]:
    latency = cell["inter_token_latency_ms"]
    return {
        "method": method,
        "end_to_end": render_estimate(cell["end_to_end_tokens_per_second"], digits=1),
        "end_to_end_speedup": render_estimate(cell["end_to_end_speedup"], suffix="x"),
        "first_token": render_estimate(cell["time_to_first_token_ms"], digits=1),
        "p50": f"{latency['p50']:.1f}" if latency else "-",
        "p95": f"{latency['p95']:.1f}" if latency else "-",
    }


def _divergences(methods: dict[str, Any], suite: str) -> list[dict[str, Any]]:
    """Sentences; a tie is none to worry about."""
    return [
        {
            "text": f"{method}: {kind} ({entry['num_outputs']} outputs), first {entry['first']['message']}",
            "is_tie": kind == "tie",
        }
        for method, cells in methods.items()
        for kind, entry in cells[suite]["losslessness"].get("divergences", {}).items()
    ]


def _comparisons(validation: dict[str, Any], suite: str) -> list[dict[str, str]]:
    rows = []
    for entry in validation["comparisons"]:
        low, high = entry["speed_ratio"]["ci95"]
        verdict = "faster" if low > 1 else "slower" if high < 1 else "no clear difference"
        if entry["suite"] == suite:
            rows.append(
                {
                    "than": entry["than"],
                    "ratio": render_estimate(entry["speed_ratio"], suffix="x"),
                    "verdict": verdict,
                }
            )
    return rows


def _other_engine(validation: dict[str, Any], suite: str) -> str:
    """What rows of another engine gain over plain decoding of their own; nothing where there are none."""
    cells = {
        name: cells[suite] for name, cells in validation["methods"].items() if "speedup_transformers" in cells[suite]
    }
    gains = [
        f"{name} {render_estimate(cell['speedup_transformers'], suffix='x')}"
        for name, cell in cells.items()
        if name != "transformers"
    ]
    if not cells:
        return ""
    text = f"{', '.join(cells)}: the library's own loops, another engine than that of the other rows"
    return f"{text}. Over its own plain generation: {', '.join(gains)}." if gains else f"{text}."


def _reasons(validation: dict[str, Any], suite: str) -> list[str]:
    """Why the candidate is faster or slower than each method that it is compared with, in the terms of one round.

    Speed is tokens a round over time a round, so the ratio of speeds is about the product of two ratios.
    """
    methods, candidate = validation["methods"], validation["candidate_method"]
    if candidate is None:
        return []
    own = methods[candidate][suite]
    reasons = []
    for comparison in validation["comparisons"]:
        cell = methods[comparison["than"]][suite]
        if comparison["suite"] != suite or "acceptance_by_position" not in cell or not own["round_ms"]:
            continue
        low, high = comparison["speed_ratio"]["ci95"]
        verdict = "wins" if low > 1 else "loses" if high < 1 else "is level"
        tau, other_tau = value_of(own["acceptance_length"]), value_of(cell["acceptance_length"])
        round_ms, other_ms = own["round_ms"]["round"]["mean"], cell["round_ms"]["round"]["mean"]
        hidden = own["round_ms"]["packed"]["mean"]
        text = (
            f"{candidate} {verdict} against {comparison['than']} "
            f"({render_estimate(comparison['speed_ratio'], suffix='x')}): {tau:.2f} tokens a round against "
            f"{other_tau:.2f} ({tau / other_tau:.2f}x), rounds of {round_ms:.1f} ms against {other_ms:.1f} "
            f"({other_ms / round_ms:.2f}x as many a second)"
        )
        if hidden:
            text += f"; {render_hit_rate(own)} of its blocks were drafted meanwhile"
        reasons.append(text)
    return reasons


def _domain_rows(methods: dict[str, Any], suite: str) -> dict[str, Any] | None:
    """Acceptance length by what the prompts are about, a row a method."""
    cells = {name: cells[suite].get("acceptance_by_domain") for name, cells in methods.items()}
    cells = {name: domains for name, domains in cells.items() if domains}
    if not cells:
        return None
    names = list(next(iter(cells.values())))
    return {
        "names": names,
        "rows": [
            {
                "method": method,
                "lengths": [f"{domains[name]['acceptance_length']:.2f}" if name in domains else "-" for name in names],
            }
            for method, domains in cells.items()
        ],
    }


def _temperature_rows(validation: dict[str, Any]) -> list[dict[str, str]]:
    """What randomness costs: suites of one source at several temperatures, side by side."""
    options, candidate = validation["options"], validation["candidate_method"]
    by_source: dict[str, list[dict[str, Any]]] = {}
    for suite in options["validate"]["suites"]:
        by_source.setdefault(str(suite["source"]), []).append(suite)
    rows = []
    for suites in by_source.values():
        temperatures = [_temperature(options, suite) for suite in suites]
        if candidate is None or len(set(temperatures)) < 2:
            continue
        for temperature, suite in sorted(zip(temperatures, suites, strict=True), key=lambda pair: pair[0]):
            cell = validation["methods"][candidate][suite["name"]]
            rows.append(
                {
                    "suite": suite["name"],
                    "temperature": f"{temperature:g}",
                    "acceptance_length": render_estimate(cell["acceptance_length"]),
                    "speedup": render_estimate(cell["speedup"], suffix="x"),
                }
            )
    return rows


def _temperature(options: dict[str, Any], suite: dict[str, Any]) -> float:
    own = suite.get("temperature")
    return options["decode"]["temperature"] if own is None else own


def _memory_rows(validation: dict[str, Any]) -> list[tuple[str, str]]:
    memory = validation["memory"]

    def holds(role: dict[str, float]) -> str:
        return f"{role['weights_mib']:.0f} MiB of weights, {role['cache_mib']:.1f} MiB of keys and values"

    rows = [(f"target, {memory['longest_sequence_tokens']} tokens", holds(memory["target"]))]
    rows += [(f"drafter {name}", holds(role)) for name, role in memory["drafters"].items()]
    for key, what in (
        ("process_peak_mib", "peak of the process, all methods open"),
        ("device_peak_mib", "peak on GPU"),
    ):
        if memory[key] is not None:
            rows.append((what, f"{memory[key]:.0f} MiB"))
    rows += [(f"peak of the worker, {name}", f"{peak:.0f} MiB") for name, peak in memory["worker_peak_mib"].items()]
    return rows


def _position_rows(methods: dict[str, Any], suite: str) -> list[dict[str, Any]]:
    rows = []
    for name, cells in methods.items():
        for key, label in (("survival", "all up to here"), ("conditional", "given those before")):
            rates = cells[suite].get("acceptance_by_position", {}).get(key, [])
            if rates:
                rows.append({"method": name, "label": label, "rates": [f"{rate:.2f}" for rate in rates[:_POSITIONS]]})
    longest = max((len(row["rates"]) for row in rows), default=0)
    return [{**row, "rates": row["rates"] + ["-"] * (longest - len(row["rates"]))} for row in rows]


def _round_rows(methods: dict[str, Any], suite: str) -> list[dict[str, str]]:
    return [
        {
            "method": name,
            **{part: f"{times['mean']:.1f}" for part, times in cells[suite]["round_ms"].items()},
            "acceptance_length": f"{value_of(cells[suite]['acceptance_length']):.2f}",
            **{anchor: _anchor_length(cells[suite], anchor) for anchor in ("anchored", "masked")},
        }
        for name, cells in methods.items()
        if cells[suite]["round_ms"]
    ]


def _anchor_length(cell: dict[str, Any], anchor: str) -> str:
    entry = cell.get("acceptance_by_anchor", {}).get(anchor)
    return f"{value_of(entry['acceptance_length']):.2f}" if entry else "-"


def _rounds_figure(methods: dict[str, Any], suite: str) -> str:
    parts = {name: cells[suite]["round_ms"] for name, cells in methods.items() if cells[suite]["round_ms"]}
    return figures.draw_rounds(parts, f"rounds-{suite}") if parts else ""


def _hit_rows(methods: dict[str, Any], suite: str) -> list[dict[str, str]]:
    by_accepted = _by_num_accepted(methods, suite)
    outcomes = ("hit_anchored", "hit_masked", "miss_bonus", "miss_count")
    return [
        {
            "num_accepted": count,
            "num_rounds": str(entry["num_rounds"]),
            **{outcome: f"{100 * entry.get(outcome, 0):.0f} %" for outcome in outcomes},
        }
        for count, entry in by_accepted.items()
    ]


def _hits_figure(methods: dict[str, Any], suite: str) -> str:
    by_accepted = _by_num_accepted(methods, suite)
    return figures.draw_hits(by_accepted, f"hits-{suite}") if by_accepted else ""


def _by_num_accepted(methods: dict[str, Any], suite: str) -> dict[str, Any]:
    cell = methods.get("asynchronous", {}).get(suite, {})
    return cell.get("hypotheses", {}).get("by_num_accepted", {})


def _acceptance_figure(methods: dict[str, Any], candidate: str | None) -> str:
    """The candidate's rates by suite, and with one suite only those of DFlash beside them."""
    shown = {candidate: methods[candidate]} if candidate else {}
    if candidate and len(methods[candidate]) == 1 and "dflash" in methods:
        shown["dflash"] = methods["dflash"]
    cells = {
        (method if len(shown) > 1 else suite): cell["acceptance_by_position"]
        for method, suites in shown.items()
        for suite, cell in suites.items()
        if "acceptance_by_position" in cell
    }
    return figures.draw_acceptance(cells) if cells else ""


def _search_view(search: dict[str, Any] | None) -> dict[str, Any] | None:
    if not search or not search.get("points"):
        return None
    chosen = search["chosen"]
    return {
        "figure": figures.draw_front(search["points"], search["front"]),
        "chosen": chosen["name"],
        "reason": chosen["reason"],
        "kept_layers": ", ".join(map(str, chosen["kept_layers"])),
        "front": [
            {
                "dropped": ", ".join(map(str, point["dropped"])) or "none",
                "state": point["state"],
                "acceptance_length": f"{point['acceptance_length']:.2f}",
                "retained": f"{100 * point['retained']:.1f} %",
                "packed_ms": f"{1e3 * point['packed_s']:.1f}",
            }
            for point in search["front"]
        ],
    }


def _curve_view(distillation: dict[str, Any] | None) -> dict[str, Any] | None:
    if not distillation or len(distillation.get("curve", [])) < 2:
        return None
    last = distillation["curve"][-1]
    return {
        "figure": figures.draw_learning_curve(distillation["curve"], distillation.get("forecasts", [])),
        "text": f"{distillation['steps']} steps in {distillation['seconds'] / 60:.1f} minutes, "
        f"{distillation['tokens_per_second']:.0f} tokens a second; estimated acceptance length at the end "
        f"{last['acceptance_anchored']:.2f} (anchored), {last['acceptance_masked']:.2f} (masked anchors)."
        + _outlook(distillation),
    }


def _outlook(distillation: dict[str, Any]) -> str:
    """What the fitted curve says of more training."""
    fits = {(fit["figure"], fit["axis"]): fit for fit in distillation.get("forecasts", [])}
    fit = fits.get(("acceptance_anchored", "seconds"))
    if fit is None:
        return ""
    later = [
        f"{render_estimate(entry)} after {entry['seconds'] / 60:.0f} minutes"
        for entry in fit["predictions"]
        if entry["multiple"] in (2, 4)
    ]
    return f" Its fit, anchored and continued: {' and '.join(later)}."


def _source(validation: dict[str, Any], suite: str) -> str:
    options = validation["options"]["validate"]
    source = next(entry["source"]["prompts"] for entry in options["suites"] if entry["name"] == suite)
    cells = [cells[suite] for cells in validation["methods"].values()]
    most = max(cell["num_prompts"] for cell in cells)
    return (
        f"{most} prompts from {GENERATED.get(source, source)}, {cells[0]['num_timed_prompts']} of them timed "
        f"{options['repetitions']} times, up to {options['max_new_tokens']} tokens each"
    )


def _configuration(validation: dict[str, Any]) -> list[tuple[str, str]]:
    target, decode = validation["target"], validation["options"]["decode"]
    details = validation["method_details"].values()
    drafter_dtypes = sorted({method["drafter_dtype"] for method in details if "drafter_dtype" in method})
    parameters = f"{target['num_parameters'] / 1e6:.1f} million"
    rows = [
        ("target", f"{target['identity']}, {target['num_layers']} layers, {parameters} parameters"),
        ("precision", f"{target['dtype']} on {target['device']}, drafter {', '.join(drafter_dtypes) or '-'}"),
        ("engine, executor", f"{decode['engine']}, {decode['executor']}"),
        ("draft length, hypotheses", f"{decode['draft_length']}, at most {decode['max_hypotheses']}"),
        ("sampling", _describe_sampling(validation)),
        ("thinking", "on" if target["thinking"] else "off"),
        ("seed", str(validation["seed"])),
    ]
    for name, drafter in validation["drafters"].items():
        rows.append((f"drafter {name}", _describe_drafter(drafter)))
    return rows


def _describe_sampling(validation: dict[str, Any]) -> str:
    options = validation["options"]
    by_suite = {suite["name"]: _temperature(options, suite) for suite in options["validate"]["suites"]}
    texts = {name: "greedy" if value == 0 else f"temperature {value:g}" for name, value in by_suite.items()}
    if len(set(texts.values())) == 1:
        return next(iter(texts.values()))
    return ", ".join(f"{name}: {text}" for name, text in texts.items())


def _describe_drafter(drafter: dict[str, Any]) -> str:
    if drafter.get("family") == "dflash":
        read = ", ".join(map(str, drafter["target_layer_ids"]))
        text = f"DFlash, {drafter['num_layers']} layers over the target's hidden states behind layers {read}"
    else:
        text = f"layers {', '.join(map(str, drafter['kept_layers']))} of {drafter['parent']}"
    text += f", {drafter['block_attention']} blocks of {drafter['block_size']}"
    seconds = drafter.get("training_seconds")
    return f"{text}, trained {seconds / 60:.1f} minutes" if seconds else text


def _machine(validation: dict[str, Any]) -> list[tuple[str, str]]:
    hardware, load = validation["hardware"], validation["load"]
    versions = ", ".join(f"{name} {version}" for name, version in validation["versions"].items())
    shares = [load["others_cores_before"], load["others_cores_during"]]
    before, during = ["unknown" if share is None else f"{share:.2f} cores" for share in shares]
    slowdowns = [
        (f"a verification beside packed passes, {name}", f"{1 + share:.2f} times as long as alone")
        for name, share in load.get("verification_slowdown", {}).items()
    ]
    return [
        ("processor", f"{hardware['processor']}, {hardware['cores']} cores, {hardware['memory_gib']} GiB"),
        ("GPUs", ", ".join(hardware["gpus"]) or "none"),
        ("system", hardware["operating_system"]),
        ("used by others", f"{before} before, {during} during"),
        *slowdowns,
        ("versions", versions),
    ]
