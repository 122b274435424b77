"""The page of the demo: one HTML file without external resources, for light and dark themes and narrow screens."""

import ast
import inspect
import os
import platform
from collections.abc import Callable, Sequence
from datetime import datetime
from html import escape
from importlib.metadata import version
from typing import Any, Final

from parts_store.examples.demo.outcome import Demo, Figure, Outcome, Step, Table

_STYLE: Final = """
:root { color-scheme: light dark; --back: #ffffff; --card: #f6f7f9; --text: #1c2430; --quiet: #5b6675;
  --line: #dfe3e8; --accent: #0b66c3; --marked: #c2410c; --good: #137a3c; --bad: #b42318; --code: #eef1f5; }
@media (prefers-color-scheme: dark) { :root { --back: #12161c; --card: #1a2028; --text: #e6eaf0; --quiet: #9aa7b6;
  --line: #2e3742; --accent: #6cb2ff; --marked: #ff9c5b; --good: #5fce8a; --bad: #ff8f85; --code: #0e1217; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--text); font: 16px/1.55 system-ui, sans-serif; }
main { max-width: 70rem; margin: 0 auto; padding: 1.5rem 1rem 3rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0.5rem 0; }
h2 { font-size: 1.3rem; line-height: 1.3; margin: 0; }
p { margin: 0.6rem 0; }
a { color: var(--accent); }
.quiet { color: var(--quiet); font-size: 0.9rem; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 1.1rem 1.2rem;
  margin: 1.2rem 0; }
.head { display: flex; flex-wrap: wrap; gap: 0.2rem 1rem; justify-content: space-between; align-items: baseline; }
.result { border-left: 4px solid var(--good); padding-left: 0.7rem; font-weight: 600; overflow-wrap: anywhere; }
.wrong { border-color: var(--bad); color: var(--bad); }
.figures { display: flex; flex-wrap: wrap; gap: 1rem; margin: 1rem 0; align-items: flex-start; }
figure { margin: 0; flex: 0 1 auto; min-width: 0; max-width: 100%; }
figure:has(svg) { flex: 1 1 24rem; }
img, svg { display: block; max-width: 100%; height: auto; border-radius: 6px; }
img { image-rendering: auto; border: 1px solid var(--line); }
svg { width: 100%; }
figcaption { color: var(--quiet); font-size: 0.85rem; margin-top: 0.3rem; max-width: 22rem; overflow-wrap: anywhere; }
figure:has(svg) figcaption { max-width: none; }
.chart text { fill: var(--quiet); font-size: 13px; }
.chart text:last-of-type { text-anchor: end; }
.line { fill: none; stroke: var(--accent); stroke-width: 2; stroke-linejoin: round; }
.marked { stroke: var(--marked); }
.wide { overflow-x: auto; margin: 0.8rem 0; }
table { border-collapse: collapse; font-size: 0.92rem; }
th, td { text-align: right; padding: 0.3rem 0.8rem; border-bottom: 1px solid var(--line); white-space: nowrap;
  font-variant-numeric: tabular-nums; }
th:first-child, td:first-child { text-align: left; padding-left: 0; white-space: normal;
  min-width: 8rem; }
thead th { font-weight: 600; vertical-align: bottom; white-space: normal; }
pre { background: var(--code); border: 1px solid var(--line); border-radius: 6px; padding: 0.7rem 0.9rem;
  overflow-x: auto; font: 0.84rem/1.5 ui-monospace, monospace; margin: 0.5rem 0; }
details { margin: 0.6rem 0; }
pre.fold { white-space: pre-wrap; overflow-wrap: anywhere; }
summary { cursor: pointer; color: var(--accent); }
.label { color: var(--quiet); font-size: 0.85rem; margin: 0.9rem 0 0.2rem; }
"""


def page(demo: Demo) -> str:
    """Return the page as HTML."""
    total = sum(step.seconds for step in demo.steps)
    packages = ", ".join(f"{name} {version(name)}" for name in ("parts_store", "zarr", "icechunk", "xarray"))
    machine = f"Python {platform.python_version()}, {platform.system()}, {os.cpu_count()} processors"
    now = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M")
    sections = "".join(_section(number, step) for number, step in enumerate(demo.steps, start=1))
    contents = "".join(
        f'<li><a href="#step-{number}">{escape(step.title)}</a></li>' for number, step in enumerate(demo.steps, start=1)
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>parts_store: what it does</title>
<style>{_STYLE}</style>
</head>
<body>
<main>
<h1>parts_store: what it does</h1>
<p>Zarr arrays whose chunks are stored in several objects, as files that other programs open, or in files that already
exist. All pictures and numbers on this page were made by one run of <code>parts-store demo</code>, and all code on it
is code that ran.</p>
<p class="quiet">{escape(now)} · {total:.0f} s in all · {escape(packages)} · {escape(machine)}</p>
<ol>{contents}</ol>
{sections}
</main>
</body>
</html>
"""


def _section(number: int, step: Step) -> str:
    outcome = step.outcome
    wrong = "" if outcome.is_right else " wrong"
    return f"""<section id="step-{number}">
<div class="head"><h2>{number}. {escape(step.title)}</h2><span class="quiet">{step.seconds:.1f} s</span></div>
<p class="result{wrong}">{escape(outcome.result)}</p>
<p>{escape(outcome.text)}</p>
{_figures(outcome.figures)}{"" if outcome.table is None else _table(outcome.table)}{_code(outcome)}{_outputs(outcome)}
</section>
"""


def _figures(figures: Sequence[Figure]) -> str:
    """Return the figures. Their HTML was made by `figures`."""
    shown = "".join(f"<figure>{each.html}<figcaption>{escape(each.caption)}</figcaption></figure>" for each in figures)
    return f'<div class="figures">{shown}</div>' if shown else ""


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in table.head)
    rows = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in table.rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _code(outcome: Outcome) -> str:
    shown = "\n\n".join(source_of(function) for function in outcome.code)
    return f'<p class="label">The code that ran</p><pre><code>{escape(shown)}</code></pre>'


def _outputs(outcome: Outcome) -> str:
    return "".join(
        f"<details open><summary>{escape(title)}</summary><pre class='fold'>{escape(text)}</pre></details>"
        for title, text in outcome.outputs
    )


def source_of(function: Callable[..., Any]) -> str:
    """Return the source of a function, with its docstring as a comment before it and without its types."""
    definition = ast.parse(inspect.getsource(function)).body[0]
    if not isinstance(definition, ast.FunctionDef):
        raise TypeError(f"expected a function, found {function}")
    lines = inspect.getsource(function).splitlines()
    names = ", ".join(each.arg for each in definition.args.args)
    # The line of the definition and that of the docstring are replaced.
    body = lines[(definition.body[0].end_lineno or 1) :]
    comment = inspect.getdoc(function) or ""
    return "\n".join([f"# {comment}", f"def {definition.name}({names}):", *body])
