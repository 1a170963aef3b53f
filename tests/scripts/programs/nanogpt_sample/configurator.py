"""
Command line for the scripts next to this file. They run this text with exec, in their own
namespace, so every assignment below lands on their settings. Accepted arguments:

    settings.py       a Python file whose assignments replace settings
    --n_layer=2       one setting, which must exist and keep its type
"""

import sys
from ast import literal_eval

for cli_arg in sys.argv[1:]:
    cli_is_flag = cli_arg.startswith("--")

    if "=" in cli_arg:
        assert cli_is_flag, f"{cli_arg}: write --name=value"
        cli_name, cli_text = cli_arg[2:].split("=")
        if cli_name not in globals():
            raise ValueError(f"there is no setting called {cli_name}")
        try:
            cli_value = literal_eval(cli_text)
        except (ValueError, SyntaxError):
            cli_value = cli_text  # not a literal: a bare string
        cli_expected = type(globals()[cli_name])
        assert type(cli_value) is cli_expected, f"{cli_name} has to be of type {cli_expected.__name__}"
        globals()[cli_name] = cli_value
        print(f"[config] {cli_name} := {cli_value}")
        continue

    assert not cli_is_flag, f"{cli_arg}: no value given"
    with open(cli_arg) as cli_file:
        cli_source = cli_file.read()
    print(f"[config] settings of {cli_arg}", cli_source, sep="\n")
    exec(cli_source)
