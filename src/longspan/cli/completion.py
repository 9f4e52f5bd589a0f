"""`longspan completion`: the script that completes commands and options in a shell."""

from typing import Annotated, Literal

from cyclopts import Parameter

from longspan.cli.inputs import AsJson, print_json

Shell = Literal["bash", "zsh", "fish", "powershell"]


def completion(
    shell: Annotated[Shell, Parameter(help="the shell that reads the script")],
    /,
    *,
    json: AsJson = False,
) -> None:
    """Print a script that completes commands and options in your shell.

    **Examples:**

        longspan completion bash > ~/.local/share/bash-completion/completions/longspan
        longspan completion zsh > ~/.zsh/completions/_longspan
        longspan completion fish > ~/.config/fish/completions/longspan.fish
    """
    from longspan.cli.commands import app

    script = app.generate_completion(prog_name="longspan", shell=shell)
    print_json({"shell": shell, "script": script}) if json else print(script, end="")
