"""Define the options of commands that can examine several machines, and run a program on the machines they name.

`query_nodes` returns the answers, and `host_hider` a function that replaces the machines' names in texts.
The options are `--hosts`, `--ray`, `--host-command`, `--host-python` and `--node-limit`; `--hosts` and `--ray` exclude
each other. Hosts are reached by ssh or by the user's command, nodes of a Ray cluster by Ray tasks. Progress is printed
to standard error.
"""

import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import Any

import click

from diagnostics.cli import seconds_option
from diagnostics.collect.ray_nodes import query_ray
from diagnostics.collect.remote import LIMIT_S, Answer, Program, RemoteError, query_hosts, read_hosts
from diagnostics.output.redact import redact


@dataclass(frozen=True)
class NodeOptions:
    """Values of the options: the machines to examine, and how to reach them."""

    hosts: Path | None = None
    ray: str = ""
    host_command: str = ""
    host_python: str = ""
    node_limit: float = LIMIT_S

    def __bool__(self) -> bool:
        """Return whether other machines are to be examined."""
        return bool(self.hosts or self.ray)


def node_options(hosts_help: str, ray_help: str) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Return a decorator that adds the options to a command, which gets them as its argument `nodes`.

    Args:
        hosts_help: Help of `--hosts`.
        ray_help: Help of `--ray`.
    """
    options = (
        click.option("--hosts", type=click.Path(path_type=Path), metavar="FILE", help=hosts_help),
        click.option(
            "--ray", is_flag=False, flag_value="auto", default="", metavar="[ADDRESS]", help=ray_help
        ),
        click.option(
            "--host-command", default="", metavar="WORDS",
            help="Command to use instead of ssh, e.g. 'kubectl exec -i {host} --'.",
        ),
        click.option(
            "--host-python", default="", metavar="PATH",
            help="Python on the hosts (default: the environment's or python3). With --ray: a local one that has Ray.",
        ),
        seconds_option("--node-limit", default=LIMIT_S, help="Time limit for each host."),
    )  # fmt: skip

    def decorate(command: Callable[..., int]) -> Callable[..., int]:
        @wraps(command)
        def wrapper(**arguments: Any) -> int:
            nodes = NodeOptions(**{field.name: arguments.pop(field.name) for field in fields(NodeOptions)})
            if nodes.hosts and nodes.ray:
                raise click.UsageError("--hosts and --ray exclude each other")
            return command(nodes=nodes, **arguments)

        for option in reversed(options):
            wrapper = option(wrapper)
        return wrapper

    return decorate


def query_nodes(
    options: NodeOptions, program_for: Callable[[str], Program], prefix: str = ""
) -> list[Answer]:
    """Run a program on the hosts of a list, or on the nodes of a Ray cluster, and return their answers.

    Args:
        options: The machines, and how to reach them.
        program_for: Returns the program for an environment; "" is the one of the Python that runs it.
        prefix: The environment whose Python runs the program on hosts, or joins the cluster; empty for the default.

    Raises:
        RemoteError: The options, the list, the command or the cluster cannot be used.
    """
    limit_s = options.node_limit
    if not 0 < limit_s <= 3600:
        raise RemoteError(f"--node-limit {limit_s:g}: expected seconds, up to 3600")
    if not options.hosts:
        if options.host_command:
            raise RemoteError("--host-command needs --hosts, not --ray")
        python = options.host_python or (f"{prefix}/bin/python" if prefix else sys.executable)
        print(f"querying Ray's nodes, at most {limit_s:g} s after joining", file=sys.stderr)
        return query_ray(python, options.ray, program_for(""), limit_s)
    hosts = read_hosts(options.hosts)
    print(f"querying {len(hosts)} hosts, at most {limit_s:g} s each", file=sys.stderr)
    return query_hosts(
        hosts,
        program_for,
        template=options.host_command,
        prefix=prefix,
        python=options.host_python,
        limit_s=limit_s,
    )


def host_hider(replacements: Iterable[tuple[str, str]]) -> Callable[[str], str]:
    """Return a function that replaces host names in a text where no letter or digit is next to them.

    If a name has several replacements, the first one is used. The names `localhost` and 127.*, and names of one
    character or more than 255, stay.
    """
    numbers: dict[str, str] = {}
    for name, number in replacements:
        if 1 < len(name) < 256 and name != "localhost" and not name.startswith("127."):
            numbers.setdefault(name, number)
    # Names are looked up, because a pattern with thousands of alternatives tries each of them at each word.
    lengths, name_char = sorted({len(name) for name in numbers}, reverse=True), re.compile(r"[^\W_]")

    placeholder = re.compile("|".join({"<host>", "<address>", *map(re.escape, numbers.values())}))

    def replace_names(text: str) -> str:
        parts, end = [], 0
        for start in (match.start() for match in re.finditer(r"(?<![^\W_])(?=\S)", text)):
            for stop in (start + length for length in lengths if end <= start <= len(text) - length):
                if (name := text[start:stop]) in numbers and not name_char.match(text, stop):
                    parts += [text[end:start], numbers[name]]
                    end = stop
                    break
        return "".join((*parts, text[end:]))

    def hide_names(text: str) -> str:
        hidden = replace_names(text)
        if hidden == text:
            return text
        # A host may be called like a word that the redaction reads, such as `password` or `scratch`.
        redacted = replace_names(redact(text))
        results = (placeholder.sub("", redact(result)) for result in (hidden, redacted))
        return hidden if next(results) == next(results) else redacted

    return hide_names
