#!/bin/sh
# First step of `make setup`: finds a Python that will do and hands over to bootstrap.py.
# Usage: bootstrap.sh PYTHON EXTRA   (PYTHON empty: look for one). Exit status 2: something is missing, and named.

fail() {
    printf 'error: %s\n       %s\n' "$1" "$2" >&2
    exit 2
}

case $(uname -s) in
Linux) ;;
Darwin) fail 'the CUDA compiler does not exist for macOS.' \
    'Use a Linux container or virtual machine, for example: docker run -it -v "$PWD:/w" -w /w debian:12' ;;
*) fail "the CUDA compiler that set-up installs is for Linux, and this is $(uname -s)." \
    'On Windows use WSL 2 (wsl --install), elsewhere a Linux container.' ;;
esac
case $(uname -m) in
x86_64 | aarch64 | arm64) ;;
*) fail "there is no CUDA compiler for $(uname -m)." 'Use an x86_64 or aarch64 machine.' ;;
esac

right='import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))'
newline='
'
remedy='Debian 12, Ubuntu 24.04 or newer: sudo apt install python3 python3-venv; Fedora: sudo dnf install python3. Another one: make PYTHON=/path/to/python3.12 ...'

if [ -n "$1" ]; then
    python=$(command -v "$1") || fail "PYTHON=$1: there is no such program." 'Give the path of a Python 3.11 to 3.14, or leave PYTHON out.'
    if ! "$python" -c "$right" >/dev/null 2>&1; then
        have=$("$python" -c 'import platform; print("Python " + platform.python_version())' 2>/dev/null) || have='not a Python that runs'
        fail "PYTHON=$1 is $have; Python 3.11 to 3.14 is needed." "$remedy"
    fi
else
    mine=$(.venv/bin/python -I -c 'import sys; print(sys._base_executable)' 2>/dev/null) # what an earlier PYTHON= chose
    python=
    consider() { # a program that passes the step, unless one is found already
        if [ -z "$python" ] && [ -x "$1" ] && [ ! -d "$1" ] && "$1" -c "$step" >/dev/null 2>&1; then python=$1; fi
    }
    set -f
    for step in "$right; import ensurepip, venv" "$right"; do # one that can make a venv, if there is one
        consider "$mine"
        for name in python3 python3.14 python3.13 python3.12 python3.11 python; do
            IFS=:
            for folder in $PATH; do # all of them: the first may be a shim with nothing behind it
                unset IFS
                consider "${folder:-.}/$name"
            done
            unset IFS
        done
    done
    set +f
    if [ -z "$python" ]; then
        found=$(command -v python3 || command -v python) || fail 'there is no Python.' "$remedy"
        have=$("$found" --version 2>&1) || fail "$found does not run${have:+: ${have%%"$newline"*}}, and there is no other Python." "$remedy"
        fail "python3 is $have; Python 3.11 to 3.14 is needed." "$remedy"
    fi
fi
shift
exec "$python" -I "${0%.sh}.py" "$@"
