"""What holds for every test."""

import signal

from hypothesis import settings

# How long an example takes says more about the machine than about the code.
settings.register_profile("phalanx", deadline=None)
settings.load_profile("phalanx")

# A shell that starts the suite in the background has it ignore Ctrl-C, and so would every program that
# a test starts and interrupts. A handler here is the default again in whatever is executed.
signal.signal(signal.SIGINT, signal.default_int_handler)
