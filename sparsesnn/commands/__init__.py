"""The commands, one module each; `register(commands)` adds a parser. A command imports the package only when it runs."""
