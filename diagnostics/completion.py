"""The command `completion`: the script by which a shell completes commands, options, codes and formats.

Made from the parsers, so that what is added is completed. A shell that has it starts none of our programs.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from diagnostics.output.findings import FINE

if TYPE_CHECKING:
    from collections.abc import Iterator

SHELLS = ("bash", "zsh", "fish")
# Of an option's or argument's value: the names of codes.
_CODES = "$_grpo_doctor_codes"
_BASH = """\
# {program}, completed by bash: put it where bash reads it, as
#   {program} completion bash > ~/.local/share/bash-completion/completions/grpo-doctor
_grpo_doctor_codes="{codes}"
_grpo_doctor() {{
    local cur="${{COMP_WORDS[COMP_CWORD]}}" prev="${{COMP_WORDS[COMP_CWORD-1]}}" command="" words="" first={first}
    {guard}
    local i
    for ((i = first; i < COMP_CWORD; i++)); do
        case "${{COMP_WORDS[i]}}" in -*) ;; *) command="${{COMP_WORDS[i]}}"; break ;; esac
    done
    case "$command $prev" in
{values}
        *)
            case "$command" in
                "") words="{commands} --help --version" ;;
{options}
            esac ;;
    esac
    COMPREPLY=($(compgen -W "$words" -- "$cur")) || :
}}
complete -o bashdefault -o default -F _grpo_doctor {names}
"""


def add(commands: Any) -> None:
    """Adds the command to a parser's commands."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "completion", help="a shell's completion of this program"
    )
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=f"one of {', '.join(SHELLS)}")
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    """Prints the script."""
    # Late: it loads every command, and they load this one.
    from diagnostics import __main__ as program
    from diagnostics import catalog, programs

    codes = " ".join(sorted({*catalog.load(), *catalog.load_checks()}))
    parser = program._parser()  # noqa: SLF001 - the one parser
    (commands,) = (action for action in parser._actions if isinstance(action.choices, dict))  # noqa: SLF001 - argparse has no other way
    told = {line.dest: line.help or "" for line in commands._choices_actions}  # type: ignore[attr-defined]  # noqa: SLF001 - the same
    parsers: dict[str, argparse.ArgumentParser] = dict(commands.choices or {})
    if options.shell == "fish":
        print("\n".join(_fish(parsers, told, codes)))
    else:
        if options.shell == "zsh":
            # Where the shell's own completion is not on yet, the bridge for bash's has nothing to stand on.
            print("(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }")
            print("autoload -U +X bashcompinit && bashcompinit")
        print(_bash(parsers, codes, programs.called()), end="")
    return FINE


def _values(action: argparse.Action) -> str:
    """What may stand behind an option, or as an argument; empty for what a shell completes as a file."""
    if action.choices:
        return " ".join(map(str, action.choices))
    return _CODES if str(action.metavar).startswith("CODE") else ""


def _bash(parsers: dict[str, argparse.ArgumentParser], codes: str, program: str) -> str:
    values, options = [], []
    for name, parser in parsers.items():
        behind = []
        free = " ".join(filter(None, (_values(each) for each in parser._actions if not each.option_strings)))  # noqa: SLF001 - argparse has no other way
        for action in parser._actions:  # noqa: SLF001 - the same
            behind += [option for option in action.option_strings if option.startswith("--")]
            if action.option_strings and (given := _values(action)):
                asked = " | ".join(f'"{name} {option}"' for option in action.option_strings)
                values.append(f'        {asked}) words="{given}" ;;')
        options.append(
            f'                {name}) words="{free}"; [[ $cur == -* ]] && words="{" ".join(behind)}" ;;'
        )
    module = program.startswith("python ")
    return _BASH.format(
        program=program, codes=codes, values="\n".join(values), options="\n".join(options),
        commands=" ".join(parsers), names="python python3" if module else program, first=3 if module else 1,
        guard='[[ "${COMP_WORDS[1]} ${COMP_WORDS[2]}" == "-m diagnostics" && COMP_CWORD -gt 2 ]] || return'
        if module else ":",
    )  # fmt: skip


def _fish(parsers: dict[str, argparse.ArgumentParser], told: dict[str, str], codes: str) -> Iterator[str]:
    yield "# grpo-doctor, completed by fish: grpo-doctor completion fish > ~/.config/fish/completions/grpo-doctor.fish"
    yield f"set -g _grpo_doctor_codes {codes}"
    yield "complete -c grpo-doctor -n __fish_use_subcommand -f -l version -d 'what is installed'"
    yield "complete -c grpo-doctor -n __fish_use_subcommand -f -l help -d 'this list'"
    for name, parser in parsers.items():
        yield f"complete -c grpo-doctor -n __fish_use_subcommand -a {name} -d {_fish_quoted(told.get(name, ''))}"
        for action in parser._actions:  # noqa: SLF001 - argparse has no other way
            given = _values(action)
            after = f"complete -c grpo-doctor -n '__fish_seen_subcommand_from {name}'"
            after += "".join(
                f" -l {option[2:]}" for option in action.option_strings if option.startswith("--")
            )
            if given:
                after += f"{' -x' if action.option_strings else ' -f'}" + f' -a "{given}"'
            elif action.option_strings and action.nargs != 0:
                after += " -r"
            if given or action.option_strings:
                about = "" if action.help in {None, argparse.SUPPRESS} else " ".join(str(action.help).split())
                yield f"{after} -d {_fish_quoted(about)}"


def _fish_quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
