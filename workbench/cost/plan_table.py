"""A plan on the terminal: what it costs, what it gains, and the answers in words."""

from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

_LEGEND = (
    "tau: assumed tokens a round; draft, packed: milliseconds; hits: share of next blocks drafted in time; needed: "
    "hits at which asynchrony breaks even; async: drafter on a device of its own; shared: on the target's\n"
)


def render_plan(plan: dict[str, Any]) -> Group:
    """Tables and sentences, from the contents of `plan.json`."""
    return Group(
        _render_models(plan),
        _render_training(plan),
        _render_speedups("speedup over plain decoding", plan["speedups"], None),
        _render_speedups("by draft length", plan["by_draft_length"], ("gamma", "draft_length")),
        _render_speedups("by hypotheses", plan["by_hypotheses"], ("most", "max_hypotheses")),
        Text(_LEGEND),
        Text("\n".join(render_answers(plan))),
    )


def render_answers(plan: dict[str, Any]) -> list[str]:
    """The questions that a plan is made for, in sentences."""
    drafter, decoding = plan["drafter"], plan["decoding_options"]
    sentences = [f"warning: {warning}" for warning in plan["warnings"]]
    sentences += [f"assumed: {assumption}" for assumption in plan["assumptions"]]
    hidden = plan["deepest_hidden"]
    what = f"a packed pass of {decoding['max_hypotheses']} hypotheses"
    if hidden == drafter["num_layers"]:
        sentences.append(f"{what} hides under the verification with all {hidden} layers: dropping layers gains nothing "
                         "on a device of the drafter's own, but speeds up every miss")  # fmt: skip
    elif hidden:
        sentences.append(f"{what} hides under the verification with at most {hidden} of {drafter['num_layers']} layers")
    else:
        sentences.append(f"{what} is longer than the verification whatever the number of layers")
    for row in _deepest(plan["speedups"]):
        sentences.append(_judge(row))
    return sentences + _break_even(plan["speedups"])


def _deepest(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    most = max(row["num_layers"] for row in rows)
    return [row for row in rows if row["num_layers"] == most]


def _judge(row: dict[str, Any]) -> str:
    place = f"at acceptance length {row['acceptance_length']:.1f}, {row['num_layers']} layers"
    if not row["num_hypotheses"]:
        return f"{place}: nothing drafted ahead is worth its time, decode synchronously"
    gain = row["asynchronous"] / row["synchronous"]
    verdict = f"gains {gain:.2f}x" if gain > 1 else f"loses ({gain:.2f}x)"
    return (
        f"{place}: asynchrony {verdict} over taking turns; it breaks even at a hit rate of "
        f"{row['needed_hit_probability']:.2f}, expected are {row['hit_probability']:.2f}"
    )


def _break_even(rows: list[dict[str, Any]]) -> list[str]:
    """What a smaller drafter must keep of the acceptance length to be as fast as the deepest."""
    sentences = []
    for full in _deepest(rows)[-1:]:
        for row in rows:
            if row["acceptance_length"] == full["acceptance_length"] and row["num_layers"] < full["num_layers"]:
                best, own = (max(entry["asynchronous"], entry["synchronous"]) for entry in (full, row))
                sentences.append(
                    f"{row['num_layers']} layers are as fast as {full['num_layers']} once they keep "
                    f"{best / own:.1%} of an acceptance length of {full['acceptance_length']:.1f}"
                )
    return sentences


def _render_models(plan: dict[str, Any]) -> Text:
    device = plan["device"]
    lines = [
        f"{role:<8} {shape['name']}: {shape['num_layers']} layers, {_short(shape['parameters'])} parameters, "
        f"{shape['decoding_weight_bytes'] / 1e9:.2f} GB in decoding"
        for role, shape in (("target", plan["target"]), ("drafter", plan["drafter"]))
    ]
    lines.append(
        f"device   {device['name']}: {device['flops_per_second'] / 1e12:.3g} TFLOPS, "
        f"{device['bytes_per_second'] / 1e12:.3g} TB/s, {device['memory_bytes'] / 1e9:.0f} GB ({device['source']})"
    )
    return Text("\n".join(lines) + "\n")


def _render_training(plan: dict[str, Any]) -> Table:
    columns = [f"{cost['num_devices']} device{'s' if cost['num_devices'] > 1 else ''}" for cost in plan["training"]]
    table = _table("corpus and training", ("", *columns))
    corpus, options = plan["corpus"], plan["training_options"]
    length = options["prompt_tokens"] + options["response_tokens"]
    rows: list[tuple[str, Any]] = [
        ("corpus: tokens", lambda cost: _short(corpus["tokens"])),
        ("corpus: hours", lambda cost: f"{corpus['device_hours'] / cost['num_devices']:.3g}"),
        ("corpus: disk", lambda cost: f"{corpus['disk_bytes'] / 1e9:.3g} GB"),
        ("steps", lambda cost: f"{cost['steps']:,}"),
        (f"sequences of {length:.0f} tokens", lambda cost: _short(cost["sequences"])),
        ("epochs", lambda cost: f"{cost['epochs']:.2f}"),
        ("rows, clean and block", lambda cost: _short(cost["rows"])),
        ("FLOPs", lambda cost: f"{cost['flops']:.2e}"),
        ("hours", lambda cost: f"{cost['hours']:.3g}"),
        ("device hours", lambda cost: f"{cost['device_hours']:.3g}"),
    ]  # fmt: skip
    for name, cell in rows:
        table.add_row(name, *(cell(cost) for cost in plan["training"]))
    for part in plan["training"][0]["memory_bytes"]:
        table.add_row(f"memory: {part}", *(f"{cost['memory_bytes'][part] / 1e9:.2f} GB" for cost in plan["training"]))
    table.add_row(
        "memory of a device",
        *(
            f"{sum(cost['memory_bytes'].values()) / 1e9:.1f} GB, {'fits' if cost['fits'] else 'DOES NOT FIT'}"
            for cost in plan["training"]
        ),
    )
    table.add_row("checkpoint", *(f"{cost['checkpoint_bytes'] / 1e9:.2f} GB" for cost in plan["training"]))
    table.add_row("drafter", *(f"{cost['drafter_bytes'] / 1e9:.2f} GB" for cost in plan["training"]))
    return table


def _render_speedups(title: str, rows: list[dict[str, Any]], first: tuple[str, str] | None) -> Table:
    """Rows of the speed model; `first` is the name of a column before the others, and its key."""
    columns = ("tau", "layers", "draft", "packed", "blocks", "hits", "needed", "sync", "async", "shared")
    table = _table(
        f"{title}; a verification takes {1e3 * rows[0]['verify_s']:.2f} ms",
        columns if first is None else (first[0], *columns),
    )
    for row in rows:
        needed = row["needed_hit_probability"]
        cells = [
            f"{row['acceptance_length']:.1f}",
            str(row["num_layers"]),
            *(f"{1e3 * row[name]:.2f}" for name in ("draft_s", "packed_s")),
            f"{row['num_hypotheses']:.1f}",
            f"{row['hit_probability']:.2f}",
            "-" if needed is None else f"{needed:.2f}",
            *(f"{row[name]:.2f}x" for name in ("synchronous", "asynchronous", "asynchronous_shared")),
        ]
        table.add_row(*([] if first is None else [str(row[first[1]])]), *cells)
    return table


def _table(title: str, columns: tuple[str, ...]) -> Table:
    table = Table(
        title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False
    )
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right", no_wrap=True)
    return table


def _short(count: float) -> str:
    for size, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.3g}{suffix}"
    return f"{count:.0f}"
