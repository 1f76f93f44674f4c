"""Data with planted answers: what every judgement of them has to say is known beforehand."""
