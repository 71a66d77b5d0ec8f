"""``umbel completion bash|zsh|fish``."""

from __future__ import annotations

import sys

import click
from click.shell_completion import get_completion_class

from umbel.cli.command_context import CommandContext, command
from umbel.cli.output import print_json
from umbel.terminal import write

_HINTS = {
    "bash": "# umbel completion bash > ~/.local/share/bash-completion/completions/umbel",
    "zsh": "# umbel completion zsh > ~/.zfunc/_umbel   (with fpath+=~/.zfunc before compinit)",
    "fish": "# umbel completion fish > ~/.config/fish/completions/umbel.fish",
}


@command()
@click.argument("shell", type=click.Choice(list(_HINTS)))
def completion(context: CommandContext, shell: str, as_json: bool) -> None:
    """Print the script that completes commands and options in your shell."""
    from umbel.cli.entry import cli

    found = get_completion_class(shell)
    assert found is not None
    script = found(cli, {}, "umbel", "_UMBEL_COMPLETE").source()
    # zsh expects its #compdef line first.
    text = f"{script.strip()}\n{_HINTS[shell]}"
    if as_json:
        print_json({"shell": shell, "script": text})
    else:
        write(sys.stdout, text)
