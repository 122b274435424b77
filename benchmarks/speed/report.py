"""The results as tables, as a list of goals, as JSON, and as a picture."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from benchmarks.speed.work import GOALS, LATENCY, OURS, Goal

type Table = Mapping[tuple[str, str, str], Mapping[str, float]]


def ratios(table: Table, peers: Sequence[str]) -> str:
    """Return a table of speeds relative to zarr's own store; larger is better."""
    lines = ["speed relative to zarr's own store with its default pipeline; larger is better", ""]
    width = max(map(len, peers)) + 2
    for (where, layout, operation), seconds in table.items():
        base = seconds.get("zarr")
        lines.append(f"{where}, {layout}, {operation}" + (f" (zarr: {base * 1e3:.1f} ms)" if base else ""))
        for peer in peers:
            if peer in seconds:
                ratio = f"{base / seconds[peer]:8.2f}" if base else "       -"
                lines.append(f"  {peer:<{width}}{ratio}  {seconds[peer] * 1e3:9.1f} ms")
    return "\n".join(lines)


def check_goals(table: Table) -> Iterable[tuple[Goal, str, float, bool]]:
    """Return every goal that was measured, what it was measured on, how it came out, and whether it holds."""
    for goal in GOALS:
        for (where, layout, operation), seconds in table.items():
            if where not in goal.where or layout not in goal.layouts or operation not in goal.operations:
                continue
            if goal.ours not in seconds:
                continue
            if goal.others:
                known = [seconds[other] for other in goal.others if other in seconds]
                if not known:
                    continue
                ratio = seconds[goal.ours] / min(known)
            else:
                ratio = seconds[goal.ours] * 1e3 / LATENCY[where]
            yield goal, f"{where}, {layout}, {operation}", ratio, ratio <= goal.at_most


def goals(table: Table) -> str:
    """Return the goals as lines of text."""
    lines = ["goals: time relative to the peer that the goal names; smaller is better", ""]
    for goal, what, ratio, holds in check_goals(table):
        lines.append(
            f"  {'holds ' if holds else 'MISSED'}  {ratio:6.2f} (at most {goal.at_most:.2f})  {what}: {goal.text}"
        )
    return "\n".join(lines)


def plot(table: Table, rows: Sequence[tuple[str, str, str]], peers: Sequence[str]) -> str:
    """Return an SVG with one group of bars per row: speed relative to zarr's own store."""
    bar, gap, left, width = 16, 22, 190, 760
    longest = max(
        (table[row]["zarr"] / table[row][peer] for row in rows for peer in peers if peer in table.get(row, {})),
        default=1.0,
    )
    parts: list[str] = []
    y = 46
    for row in rows:
        seconds = table.get(row)
        if seconds is None or "zarr" not in seconds:
            continue
        parts.append(f'<text x="10" y="{y}" class="row">{escape(", ".join(row))}</text>')
        y += 8
        for peer in (each for each in peers if each in seconds):
            ratio = seconds["zarr"] / seconds[peer]
            length = max(2, (width - left - 70) * ratio / longest)
            kind = "ours" if peer == OURS else "peer"
            parts.append(f'<text x="{left - 8}" y="{y + 12}" class="name">{escape(peer)}</text>')
            parts.append(f'<rect x="{left}" y="{y}" width="{length:.1f}" height="{bar - 3}" class="{kind}"/>')
            parts.append(f'<text x="{left + length + 6:.1f}" y="{y + 12}" class="value">{ratio:.1f}</text>')
            y += bar
        y += gap
    style = (
        "text{font:12px system-ui,sans-serif;fill:#57606a}.row,.title{font-weight:600;fill:#24292f}"
        ".name{text-anchor:end}.peer{fill:#8c959f}.ours{fill:#0969da}"
        "@media(prefers-color-scheme:dark){text{fill:#8b949e}.row,.title{fill:#e6edf3}.ours{fill:#58a6ff}}"
    )
    title = "Speed relative to zarr's own store, larger is better"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y}" width="{width}" height="{y}" role="img">'
        f"<title>{escape(title)}</title><style>{style}</style>"
        f'<text x="10" y="20" class="title">{escape(title)}</text>{"".join(parts)}</svg>\n'
    )
