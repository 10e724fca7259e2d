"""``fineflow completion``: prints the script by which a shell completes subcommands, options and their values."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

HELP = "print a completion script for bash, zsh or fish"
DESCRIPTION = (
    "Prints a script by which a shell completes subcommands, options, their values and files. bash: "
    'eval "$(fineflow completion bash)" in ~/.bashrc. zsh: the same with zsh in ~/.zshrc, after compinit. fish: '
    "fineflow completion fish > ~/.config/fish/completions/fineflow.fish."
)
_SHELLS = ("bash", "zsh", "fish")
_FISH = "complete -c fineflow -n"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=_SHELLS, help="the shell that reads the script")


def run(args: argparse.Namespace) -> int:
    from fineflow.cli.main import parser

    print({"bash": _bash, "zsh": _zsh, "fish": _fish}[args.shell](list(_commands(parser()))))
    return 0


@dataclass(frozen=True)
class _Option:
    """An option. choices: its values, if they are few. takes: "nothing", "file", "value"."""

    names: tuple[str, ...]
    help: str
    choices: tuple[str, ...]
    takes: str


@dataclass(frozen=True)
class _Command:
    """A subcommand. words: what its argument may be, if that is known. program: a program's own arguments follow."""

    name: str
    help: str
    options: tuple[_Option, ...]
    words: tuple[str, ...]
    program: bool


def _commands(parser: argparse.ArgumentParser) -> Iterator[_Command]:
    """Yields the subcommands of a parser, from argparse's own tables."""
    [group] = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    helps = {each.dest: each.help or "" for each in group._choices_actions}
    for name, inner in group.choices.items():
        places = [each for each in inner._actions if not each.option_strings]
        words = tuple(str(word) for each in places for word in each.choices or ())
        options = tuple(_option(each, inner) for each in inner._actions if each.option_strings)
        yield _Command(name, helps[name], options, words, any(each.nargs == argparse.REMAINDER for each in places))


def _option(action: argparse.Action, parser: argparse.ArgumentParser) -> _Option:
    shown = action.metavar if isinstance(action.metavar, str) else ""
    takes = "nothing" if action.nargs == 0 else "file" if shown in ("FILE", "DIR") else "value"
    text = parser._get_formatter()._expand_help(action) if action.help else ""
    return _Option(tuple(action.option_strings), text, tuple(map(str, action.choices or ())), takes)


def _bash(commands: list[_Command]) -> str:
    arms = []
    for each in commands:
        values = []
        for option in each.options:
            names = "|".join(option.names)
            if option.choices or option.takes == "file":
                given = f'-W "{" ".join(option.choices)}"' if option.choices else "-f"
                values.append(f'      {names}) COMPREPLY=($(compgen {given} -- "$cur")); return;;')
            elif option.takes == "value":
                values.append(f"      {names}) return;;")
        lines = "\n".join(['      case "$prev" in', *values, "      esac"]) if values else "      :"
        names = " ".join(name for option in each.options for name in option.names)
        files = "-f" if each.program else f'-W "{" ".join(each.words) or names}"'
        arms.append(
            f"    {each.name})\n{lines}\n      if [[ $cur == -* ]]; then\n"
            f'        COMPREPLY=($(compgen -W "{names}" -- "$cur"))\n'
            f'      else\n        COMPREPLY=($(compgen {files} -- "$cur"))\n      fi;;'
        )
    names = " ".join(each.name for each in commands)
    return (
        "_fineflow() {\n"
        '  local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}"\n'
        "  COMPREPLY=()\n"
        "  if [[ $COMP_CWORD -eq 1 ]]; then\n"
        f'    COMPREPLY=($(compgen -W "{names} --help --version" -- "$cur")); return\n'
        "  fi\n"
        '  case "${COMP_WORDS[1]}" in\n' + "\n".join(arms) + "\n  esac\n}\n"
        "complete -o filenames -F _fineflow fineflow"
    )


def _zsh(commands: list[_Command]) -> str:
    arms = []
    for each in commands:
        rows = [_zsh_option(option) for option in each.options]
        rows += [f"'1:argument:({' '.join(each.words)})'"] if each.words else []
        rows += ["'*:: :_files'"] if each.program else []
        arms.append(f"    {each.name}) _arguments " + " ".join(rows) + ";;")
    names = " ".join(f"'{each.name}:{_plain(each.help)}'" for each in commands)
    return (
        "#compdef fineflow\n_fineflow() {\n"
        f"  local -a commands=({names})\n"
        "  if (( CURRENT == 2 )); then _describe command commands; return; fi\n"
        "  local command=$words[2]\n  shift words; (( CURRENT-- ))\n"
        "  case $command in\n" + "\n".join(arms) + "\n  esac\n}\ncompdef _fineflow fineflow"
    )


def _zsh_option(option: _Option) -> str:
    value = f":value:({' '.join(option.choices)})" if option.choices else ""
    value = value or {"nothing": "", "file": ":file:_files", "value": ":value: "}[option.takes]
    text = f"[{_plain(option.help)}]{value}"
    return " ".join(f"'{name}{text}'" for name in option.names)


def _fish(commands: list[_Command]) -> str:
    lines = [
        "complete -c fineflow -f",
        *(f"{_FISH} __fish_use_subcommand -a {each.name} -d '{_plain(each.help)}'" for each in commands),
    ]
    for each in commands:
        here = f"{_FISH} '__fish_seen_subcommand_from {each.name}'"
        for option in each.options:
            names = " ".join(f"-l {n[2:]}" if n.startswith("--") else f"-s {n[1:]}" for n in option.names)
            value = f" -x -a '{' '.join(option.choices)}'" if option.choices else ""
            value = value or {"nothing": "", "file": " -r -F", "value": " -x"}[option.takes]
            lines.append(f"{here} {names}{value} -d '{_plain(option.help)}'")
        if each.words:
            lines.append(f"{here} -a '{' '.join(each.words)}'")
        if each.program:
            lines.append(f"{here} -F")
    return "\n".join(lines)


def _plain(text: str) -> str:
    """Returns a text without what the shells give a meaning to."""
    return "".join(" " if c in "'\"[]:\\`$" else c for c in text)
