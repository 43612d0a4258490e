"""The page of a search: what won and why, the Pareto front, the layer map and the history of every study."""

from typing import Any

from workbench.pages import render_template
from workbench.validate.figures import draw_front

PAGE_FILE = "search.html"
_BAR_PX = 140


def render_page(result: dict[str, Any]) -> str:
    """Renders the contents of `search.json` as one HTML file without anything outside of it."""
    view = {
        "title": f"Pruning search: {result['recipe']}",
        "facts": _facts(result),
        "reason": result["chosen"]["reason"],
        "candidates": [_candidate(entry, result["chosen"]["name"]) for entry in result["results"]],
        "num_prompts": result["results"][0]["num_prompts"],
        "front": [_point(point) for point in result["front"]],
        "verify_ms": f"{1e3 * result['pass_times'][0]['verify_s']:.1f}",
        "num_blocks": result["unpruned"]["num_blocks"],
        "figure": draw_front(result["points"], result["front"]),
        "kinds": [kind.replace("_", " ") for kind in result["studies"][0]["importance"]],
        "layers": _layer_map(result),
        "studies": [_study(study) for study in result["studies"]],
    }
    return render_template("workbench.prune", PAGE_FILE, view)


def _facts(result: dict[str, Any]) -> str:
    seconds = ", ".join(f"{name} {value:.0f} s" for name, value in result["seconds"].items() if name != "total")
    workers = f"{result['workers']} worker{'s' if result['workers'] > 1 else ''}"
    return (
        f"{len(result['unpruned']['kept_layers'])} layers before; {result['seconds']['total'] / 60:.1f} minutes with "
        f"{workers}" + (f" ({seconds})" if seconds else "")
    )


def _point(point: dict[str, Any]) -> dict[str, Any]:
    narrowed = f", width {point['width']:g}" if point["width"] < 1 else ""
    return {
        "is_chosen": point["is_chosen"],
        "dropped": _layers(point["dropped"]) + narrowed,
        "state": point["state"],
        "acceptance_length": f"{point['acceptance_length']:.2f}",
        "retained": f"{point['retained']:.1%}",
        "packed_ms": f"{1e3 * point['packed_s']:.1f}",
        "predicted_speedup": f"{point['predicted_speedup']:.2f}",
    }


def _candidate(entry: dict[str, Any], chosen: str) -> dict[str, Any]:
    return {
        "name": entry["name"],
        "is_chosen": entry["name"] == chosen,
        "dropped": _layers(entry["dropped"]),
        "heal_steps": entry["heal_steps"],
        "acceptance_length": f"{entry['acceptance_length']:.2f}",
        "hits": f"{entry['hit_share']:.0%}",
        "estimates": [
            _estimate(entry["retained"], "{:.1%}"),
            _estimate(entry["retained_same_training"], "{:.1%}"),
            _estimate(entry["speedup"], "{:.2f}"),
            _estimate(entry["speed_gain"], "{:.2f}"),
        ],
    }


def _estimate(estimate: dict[str, Any] | None, form: str) -> dict[str, str]:
    if estimate is None:
        return {"value": "not measured", "interval": ""}
    value = estimate["mean"] if "mean" in estimate else estimate["median"]
    low, high = estimate["ci95"]
    return {"value": form.format(value), "interval": f"{form.format(low)} to {form.format(high)}"}


def _layer_map(result: dict[str, Any]) -> list[dict[str, Any]]:
    """A row per layer; scores are those of the first study, whose drafter has all layers."""
    importance = result["studies"][0]["importance"]
    dropped = result["chosen"]["dropped"]
    rows = []
    for layer in result["unpruned"]["kept_layers"]:
        known = [scores.get(str(layer), scores.get(layer)) for scores in importance.values()]
        fate = "dropped" if layer in dropped else "kept"
        rows.append(
            {
                "layer": layer,
                "is_dropped": layer in dropped,
                "fate": fate if known[0] is not None else "protected",
                "scores": [
                    None if score is None else {"value": f"{score:.3f}", "width": _width(score, max(scores.values()))}
                    for score, scores in zip(known, importance.values(), strict=True)
                ],
            }
        )
    return rows


def _study(study: dict[str, Any]) -> dict[str, Any]:
    before = f" after {_layers(study['dropped_before'])}" if study["dropped_before"] else ""
    narrowed = f", feed-forward width {study['width']:g}" if study["width"] < 1 else ""
    promoted = {trial["repeats"]: trial["precise"] for trial in study["trials"] if trial["precise"]}
    return {
        "title": f"Which {study['num_dropped']} to drop{before}{narrowed}: {_layers(study['best'][0]['dropped'])}",
        "name": study["study"],
        "storage": study["storage"],
        "trials": [
            {
                "number": trial["number"],
                "dropped": _layers(trial["dropped"]),
                "estimates": [
                    _trial_estimate(trial["cheap"]),
                    _trial_estimate(trial["precise"] or promoted.get(trial["number"])),
                ],
            }
            for trial in study["trials"]
            if trial["repeats"] is None
        ],
    }


def _trial_estimate(estimate: list[float] | None) -> dict[str, Any] | None:
    if estimate is None:
        return None
    value, low, high = estimate
    return {"value": f"{value:.1%}", "interval": f"{low:.1%} to {high:.1%}", "width": _width(value, 1.0)}


def _width(value: float, largest: float) -> int:
    return round(_BAR_PX * min(1.0, max(0.0, value / largest))) if largest > 0 else 0


def _layers(layers: list[int]) -> str:
    return ", ".join(map(str, layers)) or "none"
