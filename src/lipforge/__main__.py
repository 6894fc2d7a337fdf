"""`python -m lipforge`, which is also what torchrun starts."""

from lipforge.cli.main import start

start()
