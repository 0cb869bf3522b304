"""Produce real tracebacks of releases that do not fit, each with a label from runs with other releases.

    python evaluation/api_index/skewed_releases.py PROGRAMS.json SITES OUT [--seed N] [--days N]

SITES has a folder PACKAGE-RELEASE/site-packages for each release (`uv pip install --no-deps --target`), and `misc` with
other requirements. PROGRAMS.json has `days` (package -> release -> day of upload), `base` (packages that the others
share), `imports` (package -> statements to run before its programs), `programs` (`name`, `package`, `code`) and
`ignored` (a pattern of failures of this machine). A program runs with all packages as they were on one day, and with
another release of its package among them. Each run is a fork of a process that has imported PyTorch.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from signal import alarm

import pandas as pd  # noqa: F401 - imported once for all runs, as PyTorch is
import torch._dynamo
import torch.distributed.fsdp  # noqa: F401

_ENVIRONMENT = "/home/user/miniconda3/envs/rl/lib/python3.11"
_SECONDS, _MAX_OF_KIND = 120, 10
_ERROR = re.compile(r"^[\w.]*(?:Error|Exception|Exit|Interrupt)\b.*", re.MULTILINE)
_NOISE = (
    "numpy==2.2.6",
    "pandas==2.2.3",
    "requests==2.32.3",
    "tqdm==4.67.1",
    "pyyaml==6.0.2",
    "rich==13.9.4",
)


def in_fork(task: Callable[..., None], *arguments: object) -> None:
    """Run a task in a fork of this process, and wait for its end."""
    if process := os.fork():
        os.waitpid(process, 0)
        return
    with contextlib.suppress(BaseException):
        task(*arguments)
    os._exit(0)


def prepare(statements: list[str], folders: list[Path]) -> None:
    """Put folders first on the path, and run the statements, of which some may fail."""
    sys.path[:0] = [str(folder / "site-packages") for folder in folders]
    for statement in statements:
        with contextlib.suppress(BaseException):
            exec(statement, {})


def run(code: str, key: list[str], out: Path, sites: Path) -> None:
    """Run a program, and append its traceback to the results ('' if it ends well)."""
    alarm(_SECONDS)
    script, text = out / f"train-{os.getpid()}.py", ""
    script.write_text(code)
    try:
        exec(compile(code, str(script), "exec"), {"__name__": "__main__"})
    except BaseException as error:  # noqa: BLE001 - the traceback is the product
        error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
        text = "".join(traceback.format_exception(error)).replace(str(script), "train.py")
    script.unlink()
    folders = rf"{sites}/[^/]+(?=/site-packages)|{sys.prefix}/lib/python3.11|{sys.base_prefix}/lib/python3.11"
    with (out / "runs.jsonl").open("a") as output:
        output.write(json.dumps([*key, re.sub(folders, _ENVIRONMENT, text)]) + "\n")


def releases_of(days: dict[str, dict[str, str]], day: str) -> dict[str, str]:
    """Return the newest release of each package on a day; the oldest if there was none."""
    oldest = {name: min(found, key=found.__getitem__) for name, found in days.items()}
    return oldest | {
        name: item
        for name, found in days.items()
        for item in sorted(found, key=found.get)
        if found[item] <= day
    }


def run_day(table: dict, day: str, sites: Path, out: Path, chosen: random.Random) -> None:
    """Run the programs with the releases of one day, and with other releases of their packages."""
    os.dup2(null := os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(null, 2)
    releases = releases_of(table["days"], day)
    statements = [line for name in table["base"] for line in table["imports"][name]]
    prepare(statements, [sites / f"{name}-{version}" for name, version in releases.items()])
    sys.path.append(str(sites / "misc" / "site-packages"))
    for package, found in table["days"].items():
        others = [] if package in table["base"] else chosen.sample(sorted(found), min(3, len(found)))
        for version in dict.fromkeys([releases[package], *others]):
            in_fork(run_package, table, [package, version, day], sites, out)


def run_package(table: dict, key: list[str], sites: Path, out: Path) -> None:
    """Run the programs of a package with one of its releases."""
    package, version, _day = key
    prepare([] if package in table["base"] else table["imports"][package], [sites / f"{package}-{version}"])
    for item in table["programs"]:
        if item["package"] == package:
            in_fork(run, item["code"], [item["name"], *key], out, sites)


def message_of(text: str) -> str:
    """Return the end of a traceback from its last exception on."""
    return text[[0, *(match.start() for match in _ERROR.finditer(text))][-1] :].strip()


def present(text: str, form: str, chosen: random.Random) -> list[str]:
    """Return a traceback as people post it: whole, cut, wrapped or with Ray's prefixes."""
    lines = text.rstrip().splitlines()
    prefix = f"\x1b[36m(TaskRunner pid={chosen.randint(1000, 99999)})\x1b[0m "
    return {
        "whole": lines,
        "last lines": lines[-5:],
        "wrapped": [line[at : at + 80] for line in lines for at in range(0, max(len(line), 1), 80)],
        "message": ["$ python train.py", message_of(text)],
        "ray": [prefix + line for line in lines],
    }[form]


def keep(table: dict, out: Path, chosen: random.Random) -> None:
    """Write the failures of programs that other releases run, each message once, with labels."""
    runs = [json.loads(line) for line in (out / "runs.jsonl").read_text().splitlines()]
    chosen.shuffle(runs)
    seen, kinds = set(), Counter()
    for name, package, version, day, text in runs:
        message, kind, is_base = message_of(text), (package, *name.split(" ")[:2]), package in table["base"]
        # The same release with the others of another day, or another release with the same others, does not fail so.
        better = sorted(
            {
                f"{item[1]} {item[2]}, others of {item[3]}"
                for item in runs
                if item[0] == name
                and message not in item[4]
                and (is_base or version == item[2] or day == item[3])
            }
        )
        unwanted = not message or re.search(table["ignored"], text) or (package, message) in seen
        if unwanted or kinds[kind] == _MAX_OF_KIND or not better:
            continue
        seen.add((package, message))
        kinds[kind] += 1
        number, releases = f"{len(seen):03}", releases_of(table["days"], day) | {package: version}
        form = chosen.choice(["last lines", "wrapped", "message", "ray"]) if len(seen) % 3 == 0 else "whole"
        listing = [f"{item}=={one}" for item, one in releases.items()] + [*_NOISE]
        listing.sort(
            key=lambda line: (line.partition("==")[0].removeprefix("ms-") not in text, chosen.random())
        )
        lines = [*(sorted(listing[:10]) if len(seen) % 2 else []), *present(text, form, chosen), ""]
        label = {
            "program": name,
            "package": package,
            "release": version,
            "others_of": day,
            "message": message,
        }
        label |= {"releases": releases, "better": better, "form": form}
        (out / f"{number}.full").write_text(text)
        (out / f"{number}.log").write_text("\n".join(lines))
        (out / f"{number}.label.json").write_text(json.dumps(label, indent=1))


def main() -> None:
    """Run the programs, then write logs and labels."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs=3, type=Path, metavar=("PROGRAMS", "SITES", "OUT"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--days", type=int, default=4, help="number of days; 0 only writes the labels again")
    options = parser.parse_args()
    programs, sites, out = (path.resolve() for path in options.paths)
    out.mkdir(parents=True, exist_ok=True)
    table, chosen = json.loads(programs.read_text()), random.Random(options.seed)
    for day in chosen.sample(sorted(table["days"]["transformers"].values()), options.days):
        in_fork(run_day, table, day, sites, out, chosen)
    keep(table, out, chosen)


if __name__ == "__main__":
    main()
