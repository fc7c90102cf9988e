"""Shell completion: `source <(fgrlhf completion bash)` in ~/.bashrc, or zsh in ~/.zshrc.

Completes commands, tasks of the working directory, files, and the keys of the chosen YAML file.
"""

import sys
from collections.abc import Sequence

from fgrlhf.base.errors import UserError
from fgrlhf.cli.main import COMMANDS

USAGE = """usage: fgrlhf completion bash|zsh

Prints a script that completes commands, tasks, files and keys. Put this line into ~/.bashrc, or
with zsh in place of bash into ~/.zshrc:

    source <(fgrlhf completion bash)"""

# Keys come from the YAML file that is already on the command line, as `section.key`.
SCRIPT = r"""
_fgrlhf() {
    local current="${COMP_WORDS[COMP_CWORD]}" command="${COMP_WORDS[1]:-}" word words
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "@COMMANDS@" -- "$current"))
        return
    fi
    case "$command:$COMP_CWORD" in
        @TASK_IS_NEXT@ | rm:3 | feedback:3)
            COMPREPLY=($(compgen -W "$(ls -d tasks/*/task.py 2>/dev/null |
                sed 's|^tasks/\(.*\)/task.py$|tasks.\1|')" -- "$current"))
            return ;;
        rm:2)
            words="segment sequence span_files step_files linear export"
            COMPREPLY=($(compgen -W "$words" -- "$current")); return ;;
        feedback:2)
            words="new items select suggest pages serve collect export submissions merge
                reliability adjudicate agreement anchoring task_pages"
            COMPREPLY=($(compgen -W "$words" -- "$current")); return ;;
        data:2)
            words="show check convert explore filter import export agreement model convert-config"
            COMPREPLY=($(compgen -W "$words" -- "$current")); return ;;
    esac
    for word in "${COMP_WORDS[@]:2}"; do
        case "$word" in
            *.yml | *.yaml)
                if [ -f "$word" ] && [ "$word" != "$current" ]; then
                    COMPREPLY=($(compgen -W "$(sed -n \
                        -e '/^[a-z]/{s/:.*//;h}' \
                        -e '/^  [a-z_]*:/{s/^  //;s/:.*//;G;s/\(.*\)\n\(.*\)/\2.\1=/p}' "$word")" \
                        -- "$current"))
                    compopt -o nospace
                    return
                fi ;;
        esac
    done
    COMPREPLY=($(compgen -f -- "$current"))
}
complete -o default -F _fgrlhf fgrlhf
"""


def main(argv: Sequence[str] | None = None) -> None:
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments in (["-h"], ["--help"]):
        print(USAGE)
        return
    if arguments not in (["bash"], ["zsh"]):
        raise UserError(
            "name the shell: `source <(fgrlhf completion bash)`, or zsh in place of bash"
        )
    if arguments == ["zsh"]:
        print("autoload -U +X bashcompinit && bashcompinit")
    task_is_next = []
    for name, (_, usage, _) in COMMANDS.items():
        if usage.startswith(("TASK", "[TASK]")):
            task_is_next.append(name)
    script = SCRIPT.strip().replace("@COMMANDS@", " ".join(COMMANDS))
    print(script.replace("@TASK_IS_NEXT@", " | ".join(f"{name}:2" for name in task_is_next)))
