# For stage scripts that are one call of a function of env.sh: source this with the function and its arguments.
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"
"$@"
