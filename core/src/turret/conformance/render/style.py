"""The style sheet of the HTML page: light and dark, wide and narrow, and nothing said by colour alone."""

from __future__ import annotations

LIGHT = {
    "page": "#ffffff",
    "panel": "#f4f6f8",
    "line": "#c9d1d9",
    "text": "#1b2026",
    "muted": "#55606b",
    "link": "#0b5cad",
    "good": "#17692e",
    "bad": "#b3261e",
    "warn": "#7d5200",
    "bar": "#3b6ea8",
}
DARK = {
    "page": "#12161b",
    "panel": "#1b2128",
    "line": "#3a444f",
    "text": "#e4e8ec",
    "muted": "#a3adb8",
    "link": "#7db7f5",
    "good": "#63cf83",
    "bad": "#ff938a",
    "warn": "#e5b84b",
    "bar": "#6fa3de",
}


def _colours(theme: dict[str, str]) -> str:
    return " ".join(f"--{name}: {value};" for name, value in theme.items())


SHEET = f"""\
:root {{ color-scheme: light dark; {_colours(LIGHT)} }}
@media (prefers-color-scheme: dark) {{ :root {{ {_colours(DARK)} }} }}
* {{ box-sizing: border-box; }}
body {{ margin: 0 auto; max-width: 84rem; padding: 1.25rem; background: var(--page); color: var(--text);
  font: 15px/1.5 system-ui, sans-serif; }}
h1 {{ font-size: 1.6rem; margin: 0 0 .5rem; }}
h2 {{ font-size: 1.2rem; margin: 1.5rem 0 .5rem; }}
h3 {{ font-size: 1rem; margin: 1.25rem 0 .4rem; }}
h4 {{ font-size: .95rem; margin: .9rem 0 .3rem; overflow-wrap: anywhere; }}
p, ul {{ margin: .4rem 0; }}
ul {{ padding-left: 1.2rem; }}
a {{ color: var(--link); }}
a:focus-visible, summary:focus-visible, .scroll:focus-visible {{ outline: 3px solid var(--link); outline-offset: 2px; }}
.about, .versions, .muted {{ color: var(--muted); }}
.about {{ max-width: 60rem; }}
.scroll {{ overflow-x: auto; border: 1px solid var(--line); border-radius: 6px; }}
table {{ border-collapse: collapse; width: 100%; font-size: .875rem; }}
caption {{ text-align: left; padding: .6rem .75rem; color: var(--muted); }}
caption span {{ display: inline-block; position: sticky; left: .75rem; max-width: calc(100vw - 4rem); }}
th, td {{ padding: .4rem .75rem; text-align: left; vertical-align: top; border-top: 1px solid var(--line); }}
td, thead th {{ min-width: 10.5rem; border-left: 1px solid var(--line); overflow-wrap: anywhere; }}
tr > :first-child {{ position: sticky; left: 0; min-width: 9.75rem; width: 1%; border-left: 0;
  background: var(--panel); }}
thead th {{ background: var(--panel); font-size: 1rem; }}
thead th small {{ display: block; font-weight: normal; font-size: .8rem; color: var(--muted); }}
tbody th {{ font-weight: 600; white-space: nowrap; }}
tbody + tbody {{ border-top: 3px double var(--line); }}
.kind {{ display: inline-block; padding: 0 .4rem; border: 1px solid currentColor; border-radius: 4px;
  color: var(--text); }}
.counts > span {{ white-space: nowrap; margin-right: .6rem; }}
.passed, .good {{ color: var(--good); }}
.failed, .crashed, .timed-out, .bad {{ color: var(--bad); font-weight: 700; }}
.expected-failure {{ color: var(--warn); font-weight: 600; }}
.unsupported, .skipped, .none {{ color: var(--muted); }}
.made {{ display: flex; flex-wrap: wrap; gap: 0 .6rem; align-items: center; color: var(--muted); font-size: .8rem; }}
.made > span {{ white-space: nowrap; }}
.bar {{ display: inline-block; width: 4rem; height: .5rem; margin-right: .35rem; border: 1px solid var(--muted);
  border-radius: 2px; }}
.bar i {{ display: block; height: 100%; background: var(--bar); }}
details.backend {{ border: 1px solid var(--line); border-radius: 6px; margin: .75rem 0; padding: .5rem .9rem; }}
summary {{ cursor: pointer; }}
summary h2 {{ display: inline; margin: 0 .5rem 0 0; }}
pre {{ margin: .3rem 0; padding: .55rem .75rem; background: var(--panel); border: 1px solid var(--line);
  border-radius: 4px; font-size: .82rem; white-space: pre-wrap; overflow-wrap: anywhere; }}
code {{ font-size: .9em; overflow-wrap: anywhere; }}
.ids {{ color: var(--muted); font-size: .85rem; }}
@media (max-width: 640px) {{
  body {{ padding: .75rem; }}
  th, td {{ padding: .35rem .5rem; }}
  td, thead th {{ min-width: 9.75rem; }}
  tr > :first-child {{ min-width: 6.75rem; max-width: 6.75rem; font-size: .8rem; white-space: normal; }}
  .bar {{ width: 2.6rem; }}
}}
@media print {{ .scroll {{ overflow: visible; }} }}
"""
