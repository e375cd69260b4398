"""Reads the results of headline.sh; prints a table and draws it.  headline.py [--svg FILE] [--results DIR]"""
import argparse, glob, json, os, re, statistics as st

HERE = os.path.dirname(os.path.abspath(__file__))
THEIRS = {"ddp": "DDP (Gloo)", "hand-set": "DDP, shares set by hand", "postlocal8": "PostLocalSGD, period 8", "torchft": "torchft 0.2.0",
          "hivemind": "Hivemind, batch 256", "hivemind-local": "Hivemind, local updates"}
KINDS = {"slept": "slept: 2, 2, 4 and 8 ms per sample", "quota": "by CPU quotas: 0.32, 0.32, 0.16 and 0.08 cores",
         "network": "links of 100 Mbit/s, equal workers"}
INK, PALE, OURS, OTHERS = "#222222", "#e3e3e3", "#1f77b4", "#9a9a9a"


def read(folder):
    """kind -> contestant -> the runs of all seeds"""
    found = {}
    for path in sorted(glob.glob(f"{folder}/uneven-*-s*.json")):
        match = re.fullmatch(r"uneven-(slept|quota|network)-(.+)-s\d+\.json", os.path.basename(path))
        if match:
            with open(path) as f:
                found.setdefault(match[1], {}).setdefault(match[2], []).extend(json.load(f)["runs"])
    return found


def seconds(runs):
    """Median, shortest and longest; None if the target was not reached in every run."""
    if not all(run["reached"] for run in runs): return None
    took = [run["seconds"] for run in runs]
    return st.median(took), min(took), max(took)


def name(one): return THEIRS.get(one, f"Paceline {one}")


def ranked(rows):
    """DDP first, then by time; those that do not reach the target last."""
    return sorted(rows, key=lambda one: (one != "ddp", (seconds(rows[one]) or (1e9,))[0]))


def told(runs, base):
    s = seconds(runs)
    if s is None: return f"reached in {sum(run['reached'] for run in runs)} of {len(runs)}", "-"
    return f"{s[0]:.1f} ({s[1]:.1f} to {s[2]:.1f})", f"{base / s[0]:.2f}x" if base else "-"


def table(found):
    kinds = [kind for kind in KINDS if kind in found]
    bases = {kind: (seconds(found[kind].get("ddp", [])) or (None,))[0] if found[kind].get("ddp") else None for kind in kinds}
    print("| | " + " | ".join(f"{kind}, s | than DDP" for kind in kinds) + " |")
    print("|---|" + "--:|--:|" * len(kinds))
    order = ranked(found[kinds[0]])
    for one in order + [one for kind in kinds for one in found[kind] if one not in order]:
        cells = [cell for kind in kinds for cell in (told(found[kind][one], bases[kind]) if one in found[kind] else ("-", "-"))]
        print(f"| {'**' + name(one) + '**' if one not in THEIRS else name(one)} | " + " | ".join(cells) + " |")
    loads = [run["loadavg"] for kind in kinds for runs in found[kind].values() for run in runs]
    print(f"\nload average {min(loads):.0f} to {max(loads):.0f}")


def panel(rows, title, left, top):
    """One column of bars, in SVG."""
    width, label, step = 330, 190, 24
    ones = ranked(rows)
    reached = {one: seconds(rows[one]) for one in ones}
    most = max((s[2] for s in reached.values() if s), default=1.0)
    parts = [f'<text x="{left}" y="{top}" font-size="13" font-weight="bold">{title}</text>']
    tick = next(t for t in (1, 2, 5, 10, 20, 50, 100) if most / t <= 6)
    bottom = top + 14 + step * len(ones)
    for at in range(0, int(most) + 1, tick):
        x = left + label + width * at / most
        parts.append(f'<path stroke="{PALE}" d="M{x:.1f} {top + 10}V{bottom}"/><text x="{x:.1f}" y="{bottom + 14}" text-anchor="middle">{at}</text>')
    for row, one in enumerate(ones):
        y, s = top + 14 + step * row, reached[one]
        weight = "" if one in THEIRS else ' font-weight="bold"'
        parts.append(f'<text x="{left + label - 8}" y="{y + 14}" text-anchor="end"{weight}>{name(one)}</text>')
        if s is None:
            parts.append(f'<text x="{left + label + 6}" y="{y + 14}" fill="#777777">{told(rows[one], None)[0]}</text>')
            continue
        scale = width / most
        color = OTHERS if one in THEIRS else OURS
        parts.append(f'<rect x="{left + label}" y="{y + 3}" width="{s[0] * scale:.1f}" height="15" fill="{color}"/>')
        parts.append(f'<path stroke="{INK}" fill="none" d="M{left + label + s[1] * scale:.1f} {y + 10.5}H{left + label + s[2] * scale:.1f}"/>')
        parts.append(f'<text x="{left + label + s[2] * scale + 6:.1f}" y="{y + 14}">{s[0]:.1f}</text>')
    parts.append(f'<text x="{left + label + width / 2}" y="{bottom + 30}" text-anchor="middle">seconds to the target; median and range of the seeds</text>')
    return parts, bottom + 40


def draw(found, path):
    kinds = [kind for kind in KINDS if kind in found]
    parts, height = [], 0
    for column, kind in enumerate(kinds):
        more, bottom = panel(found[kind], KINDS[kind], 20 + 580 * column, 62)
        parts, height = parts + more, max(height, bottom)
    width = 20 + 580 * len(kinds)
    with open(path, "w") as f:
        f.write(f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" font-family="sans-serif" '
                f'font-size="11" fill="{INK}"><path fill="#ffffff" d="M0 0h{width}v{height}H0z"/>'
                '<text x="20" y="30" font-size="17" font-weight="bold">Four processes at 1:1:2:4: the same torch loop until the same training loss</text>'
                + "".join(parts) + "</svg>\n")


if __name__ == "__main__":
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--kinds", nargs="+", default=list(KINDS)); arguments.add_argument("--svg"); arguments.add_argument("--results", default=os.path.join(HERE, "results"))
    given = arguments.parse_args()
    results = {kind: rows for kind, rows in read(given.results).items() if kind in given.kinds}
    table(results)
    if given.svg: draw(results, given.svg)
