"""The commands, one module each: `register(commands)` adds its parser. They import the package only when they run."""
