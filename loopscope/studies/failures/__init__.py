"""Claims that do not hold: experiments that ask why, whose findings stand beside the rows and decide nothing."""
