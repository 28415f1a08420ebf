"""Whether a relay lives and can work, told over HTTP."""
